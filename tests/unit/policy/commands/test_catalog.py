"""The data of the argument models: every entry loads, has its reason, and is found by name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from cellwall.policy.commands import catalog
from cellwall.policy.commands.arguments import RISKY, TAKES_REST, ArgumentModel, Effect, Takes
from cellwall.policy.commands.catalog import build_model, canonical, find_model, programs
from cellwall.policy.commands.models import HANDLERS

pytestmark = pytest.mark.requirement("POL-3")


def _all(model: ArgumentModel) -> Iterator[ArgumentModel]:
    yield model
    for sub in dict.fromkeys(map(id, model.subs.values())):
        yield from _all(next(each for each in model.subs.values() if id(each) == sub))


def _effects(effect: Effect) -> Iterator[Effect]:
    if not effect.cases:
        yield effect
    for _, case in effect.cases:
        yield from _effects(case)


@pytest.mark.parametrize("name", programs())
def test_every_model_loads_and_every_risk_has_a_reason(name: str):
    model = find_model(name)
    assert model is not None
    for each in _all(model):
        places = [option.effect for option in each.options.values()]
        places += [*each.operands, each.looks, each.other, each.always]
        for effect in (found for place in places for found in _effects(place)):
            if effect.kind in RISKY and not (effect.kind == "program" and effect.detail):
                assert effect.why, f"{each.name}: {effect}"


@pytest.mark.parametrize("name", programs())
def test_a_model_whose_operands_are_a_command_knows_all_its_options(name: str):
    """A value that is taken for the inner command would hide the real one."""
    lenient = {"valgrind", "xterm", "mosh", "nix develop", "corepack exec", "gem exec", "watchexec"}
    model = find_model(name)
    assert model is not None
    for each in _all(model):
        takes = any(effect.kind in TAKES_REST for effect in each.operands)
        assert not takes or each.is_strict or each.name in lenient


def test_no_name_has_two_models():
    names = Counter[str]()
    for chunk in catalog._chunks().values():
        also = catalog._ALSO.search(chunk)
        names.update(also[1].split() if also else ())
    names.update(programs())
    assert [name for name, count in names.items() if count > 1] == []


def test_every_table_of_a_file_belongs_to_a_program():
    for file in os.listdir(catalog.FOLDER):
        assert file.endswith(".toml")
    assert len(programs()) > 250


def test_every_handler_has_a_model():
    assert [name for name in HANDLERS if canonical(name) != name] == []


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("python3.11", "python"),
        ("/usr/bin/env", "env"),
        ("gcc-12", "gcc"),
        ("vim.tiny", "vim"),
        ("lua5.4", "lua"),
        ("base64", "base64"),
        ("7z", "7z"),
        ("[", "test"),
        (".", "source"),
        ("nobody-knows-this", None),
        ("", None),
        ("/", None),
    ],
)
def test_the_base_name_without_its_version_decides(program: str, name: str | None):
    assert canonical(program) == name


@pytest.mark.parametrize(
    "table",
    [
        {"valeus": "-x"},
        {"does": {"-x": "runs: it"}},
        {"does": {"-x": "danger"}},
        {"flags": "-x", "values": "-x"},
        {"does": {"-x": "@nothing"}},
    ],
)
def test_data_that_is_wrong_is_refused(table: dict[str, object]):
    with pytest.raises((ValueError, KeyError)):
        build_model("x", table)


def test_an_option_that_takes_all_words_takes_them_as_a_command():
    fd = find_model("fd")
    assert fd is not None
    assert fd.options["-x"].effect.kind == "inner"
    assert fd.options["-x"].takes is Takes.VALUE
