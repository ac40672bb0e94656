"""The catalog: complete, consistent with the programs, and referring to what exists."""

from __future__ import annotations

import platform
import re
import tomllib
from pathlib import Path

import pytest

from adversarial.conftest import attack_names
from cellwall.core.errors import BadInput
from cellwall.redteam.attack import LAYERS
from cellwall.redteam.catalog import attacks, explanation, program_text, select

REQUIREMENTS = tomllib.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "requirements.toml").read_text("utf-8")
)


@pytest.mark.requirement("RED-1")
def test_there_are_more_than_two_hundred_attacks_and_some_of_each_layer():
    found = attacks()
    assert len(found) >= 200
    assert len({attack.id for attack in found}) == len(found)
    assert {attack.layer for attack in found} == set(LAYERS)


@pytest.mark.requirement("RED-1")
def test_every_attack_has_a_requirement_references_a_wall_and_a_control():
    for attack in attacks():
        assert attack.requirement in REQUIREMENTS, attack.id
        assert all(re.fullmatch(r"ASI(0[1-9]|10)", each) for each in attack.owasp), attack.id
        assert all(re.fullmatch(r"AML\.T\d{4}(\.\d{3})?", each) for each in attack.atlas), attack.id
        assert attack.owasp, attack.id
        assert all((attack.title, attack.wall, attack.control, explanation(attack))), attack.id


@pytest.mark.requirement("RED-1")
def test_the_catalog_names_exactly_what_each_program_tries():
    programs = {attack.program for attack in attacks() if attack.program}
    assert len(programs) == 9
    for program in programs:
        listed = [attack.key for attack in attacks() if attack.program == program]
        assert sorted(listed) == sorted(attack_names(program)), (program, platform.machine())


def test_every_program_is_one_python_text():
    for program in {attack.program for attack in attacks() if attack.program}:
        compile(program_text(program), program, "exec")


def test_selection_by_layer_and_by_id():
    assert {attack.layer for attack in select(layer="audit")} == {"audit"}
    assert [attack.id for attack in select(only="files/read-by-dot-dot")] == [
        "files/read-by-dot-dot"
    ]
    with pytest.raises(BadInput):  # nothing tried must not look like nothing through
        select(layer="audit", only="files/read-by-dot-dot")


@pytest.mark.parametrize(
    "name", ["", "files", "../../etc/passwd", "files/\x1b[2J", "a" * 10_000, "files/\udcff", "*"]
)
def test_a_hostile_name_is_refused_without_being_echoed_raw(name):
    for refused in ({"only": name}, {"layer": name or "none"}):
        with pytest.raises(BadInput) as error:
            select(**refused) if name != "files" or "only" in refused else select(layer="file")
        assert error.value.code == "CW-REDTEAM-UNKNOWN"
        assert error.value.message.isprintable()
        assert len(error.value.message) < 200
