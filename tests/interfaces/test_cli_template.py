"""`cellwall template`: what can go wrong without a download, and what is told then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cellwall as sdk
from cellwall.admin.templates import Templates
from cellwall.core.types import Principal
from cellwall.sandbox.templates import definitions
from interfaces.test_cli_process import cellwall, error_code
from tiny_index import tiny_index, use_config, write_config

ANN = Principal("ann", "cli")


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


def test_a_build_without_an_index_fails_with_a_hint_and_is_recorded(tmp_path, monkeypatch):
    write_config(tmp_path / "config.toml", "http://127.0.0.1:9")
    use_config(monkeypatch, tmp_path)
    done = cellwall("template", "build", "--json")
    assert (done.returncode, done.stderr) == (125, b"")
    told = json.loads(done.stdout)["error"]
    assert (told["code"], bool(told["hint"])) == ("CW-TEMPLATE-NETWORK", True)
    lines = cellwall("audit", "tail", "--kind", "template").stdout.decode().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["begins", "failed"]


@pytest.mark.requirement("LANG-2", "PKG-2")
def test_the_shipped_template_is_built_without_a_feed_and_commands_find_its_packages(
    tmp_path, monkeypatch, state_home
):
    with tiny_index(tmp_path) as served:
        # A fresh machine: no feed, and the shipped lock has the hash of this file.
        path = tmp_path / "config.toml"
        path.write_text(path.read_text().replace('without_feed = "allow"\n', ""))
        use_config(monkeypatch, tmp_path)
        digest = served.pypi["tiny"]["files"][0]["hashes"]["sha256"]
        pins = f"tiny==1.0 \\\n    --hash=sha256:{digest}\n".encode()
        monkeypatch.setattr(definitions, "shipped_requirements", lambda _: pins)
        definitions.shipped_hashes.cache_clear()
        try:
            Templates().build("python-data", principal=ANN, on_progress=lambda _: None)
        finally:
            definitions.shipped_hashes.cache_clear()
        answer = ["python3", "-c", "import tiny; print(tiny.ANSWER)"]
        assert sdk.run_command(answer, template="python-data").stdout == "42\n"
        assert sdk.run_command(answer).exit_code == 1
        with sdk.Sandbox.create(template="python-data") as sbx:
            assert sbx.commands.run(answer).stdout == "42\n"
        assert sdk.run_command("true", template="nope").error.code == "CW-NO-TEMPLATE"
