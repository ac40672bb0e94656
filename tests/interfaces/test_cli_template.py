"""`cellwall template`: what can go wrong without a download, and what is told then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cellwall as sdk
from cellwall.sandbox.templates import environments
from interfaces.test_cli_process import cellwall, error_code
from unit.sandbox import tiny_template

ALONE = {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
NO_INDEX = {**ALONE, "PIP_NO_INDEX": "1"}


def test_list_tells_what_is_not_built():
    done = cellwall("template", "list")
    assert done.returncode == 0
    assert b"not built: cellwall template build python-data" in done.stdout
    told = json.loads(cellwall("template", "list", "--json").stdout)
    assert told == {"templates": [{"name": "python-data", "built": False}]}


def test_list_names_a_damaged_template_beside_the_others(state_home):
    folder = Path(state_home, "templates")
    folder.mkdir()
    (folder / "web.json").write_text('{"packages": ["requests"]}')
    (folder / "broken.json").write_text("{")
    done = cellwall("template", "list")
    assert done.returncode == 0
    assert b"web  requests\n  not built" in done.stdout
    assert b"broken  damaged: the definition of the template broken is damaged\n" in done.stdout
    rows = json.loads(cellwall("template", "list", "--json").stdout)["templates"]
    assert [row["name"] for row in rows if "damaged" in row] == ["broken"]
    assert {row["name"] for row in rows} == {"python-data", "web", "broken"}


@pytest.mark.parametrize("verb", ["build", "remove"])
def test_an_unknown_template_is_told_with_those_there_are(verb):
    done = cellwall("template", verb, "python-dta")
    assert (done.returncode, error_code(done)) == (125, "CW-NO-TEMPLATE")
    assert b"python-data" in done.stderr
    assert cellwall("audit", "tail").stdout == b""


def test_removing_what_is_not_built_is_told():
    done = cellwall("template", "remove", "python-data", "--json")
    assert (done.returncode, done.stderr) == (125, b"")
    assert json.loads(done.stdout)["error"]["code"] == "CW-TEMPLATE-NOT-BUILT"


def test_a_build_without_packages_fails_with_a_mend_and_is_recorded():
    done = cellwall("template", "build", **NO_INDEX)
    assert (done.returncode, done.stdout) == (125, b"")
    assert error_code(done) == "CW-TEMPLATE-NO-WHEELS"
    assert b"\n  hint: " in done.stderr
    lines = cellwall("audit", "tail", "--kind", "template").stdout.decode().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["begins", "failed"]


def test_with_json_there_is_one_object_and_nothing_else():
    done = cellwall("template", "build", "--json", **ALONE, PIP_INDEX_URL="https://127.0.0.1:9/s")
    assert (done.returncode, done.stderr) == (125, b"")
    assert json.loads(done.stdout)["error"]["code"] == "CW-TEMPLATE-NETWORK"


@pytest.mark.requirement("LANG-2")
def test_commands_find_the_packages_of_a_template(tmp_path, monkeypatch, state_home):
    tiny_template.offline(monkeypatch, tmp_path, tiny_template.wheel(tmp_path))
    environments.build(
        state_home, "python-data", may_install=lambda _: None, on_progress=lambda _: None
    )
    answer = ["python3", "-c", "import tiny; print(tiny.ANSWER)"]
    assert sdk.run_command(answer, template="python-data").stdout == "42\n"
    assert sdk.run_command(answer).exit_code == 1
    with sdk.Sandbox.create(template="python-data") as sbx:
        assert sbx.commands.run(answer).stdout == "42\n"
    assert sdk.run_command("true", template="nope").error.code == "CW-NO-TEMPLATE"
