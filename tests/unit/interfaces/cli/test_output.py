"""What we print ourselves."""

from __future__ import annotations

import errno
import json
import os

import pytest

from cellwall.config.models import PROFILE_NAMES
from cellwall.core.errors import BadInput
from cellwall.core.limits import LimitName, Limits
from cellwall.interfaces.cli import options, output, run
from cellwall.interfaces.cli.commands import COMMANDS, cli
from cellwall.interfaces.outcome_text import limit_line


def printed(value, capfd) -> object:
    output.print_json(value)
    out = capfd.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(out, parse_constant=refuse)


def test_json_is_valid_whatever_the_code_said(capfd):
    hostile = {
        "lone \ud800": "a\udcffb",
        "nan": float("nan"),
        "inf": [float("-inf"), 1.5],
        "fine": ["grüße", None, True, 1],
    }
    assert printed(hostile, capfd) == {
        "lone \ufffd": "a\ufffdb",
        "nan": None,
        "inf": [None, 1.5],
        "fine": ["grüße", None, True, 1],
    }


def test_a_deep_nest_is_cut_instead_of_overflowing_the_stack(capfd):
    nest: object = "end"
    for _ in range(900):
        nest = [nest]
    value = printed({"value": nest}, capfd)
    depth = 0
    while isinstance(value, (list, dict)):
        value = value["value"] if isinstance(value, dict) else value[0]
        depth += 1
    assert (depth, value) == (101, None)


def test_text_for_a_pipe_is_unchanged(capfdbinary):
    output.print_text("a\x1b[2J\udcff€\n")
    assert capfdbinary.readouterr().out == b"a\x1b[2J\xff\xe2\x82\xac\n"


@pytest.mark.parametrize("name", list(LimitName))
def test_every_limit_has_a_line_with_an_option_that_exists(name):
    line = limit_line(name, Limits())
    option = line.rpartition(" ")[2]
    run = cli.get_command(None, "run")
    assert option in {word for parameter in run.params for word in parameter.opts}
    assert line.startswith(f"ended by the {name.value.replace('_', ' ')} limit (")


def test_the_profiles_offered_are_those_there_are():
    assert set(options.PROFILES) == set(PROFILE_NAMES)


def test_the_table_of_commands_is_true():
    for name, (_, _, told) in COMMANDS.items():
        command = cli.get_command(None, name)
        assert command.name == name
        assert told.endswith(".")


def test_read_bounded_never_takes_more_than_it_may():
    reading, writing = os.pipe()
    os.write(writing, b"x" * 100)
    os.close(writing)
    try:
        assert options.read_bounded(reading, 10) is None
        assert len(os.read(reading, 1000)) == 89
    finally:
        os.close(reading)


def test_a_file_that_may_not_be_read_is_told_so(monkeypatch):
    def closed(*_):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(BadInput) as told:
        run._read_file("secret.py", 10)
    assert (told.value.code, told.value.message) == ("CW-CODE-FILE", "'secret.py' may not be read")


def test_progress_on_a_terminal_has_a_bar_for_a_part_of_a_whole(capfd, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    show = output.Progress(quiet=False)
    for text in ("resolving", "installing: 5 of 20 packages", "pypi: 30,000 of 20,000", "0 of 0"):
        show(text)
    show.end()
    assert capfd.readouterr().err.split(output.ERASE) == [
        "",
        "cellwall: resolving",
        f"cellwall: [{'#' * 5}{'.' * 15}] installing: 5 of 20 packages",
        f"cellwall: [{'#' * 20}] pypi: 30,000 of 20,000",
        f"cellwall: [{'.' * 20}] 0 of 0",
        "",
    ]
