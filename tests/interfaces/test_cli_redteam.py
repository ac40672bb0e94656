"""`cellwall redteam` on this host: held with the walls, through without one, never on its own word."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import anyio
import pytest

from adversarial import layer_dropout
from adversarial.conftest import ATTACKS
from cellwall.admin.redteam import cell_programs
from cellwall.admin.redteam.suite import LAYERS, run_attacks, select
from cellwall.admin.redteam.trial_host import effective_toml, trial_host
from cellwall.config.load import load_settings
from cellwall.redteam.catalog import attacks
from conftest import need
from interfaces.test_cli_process import in_process

LANDLOCK = "files/landlock-write-own-comm"


def verdicts(data: dict[str, Any]) -> dict[str, str]:
    return {each["id"]: each["verdict"] for each in data["attacks"]}


@pytest.mark.requirement("RED-1")
def test_a_few_attacks_of_each_layer_are_held_and_proved() -> None:
    """The service and the whole of each layer take longer: see the last test."""
    chosen = [
        attack
        for layer in LAYERS
        if layer != "service"
        for attack in [each for each in select(layer=layer) if each.data.get("kind") != "new"][-1:]
    ]
    seen: list[str] = []
    report = run_attacks(
        chosen, config=None, profile=None, on_layer=lambda layer, *_: seen.append(layer)
    )
    missed = [each for each in report.results if each.verdict.value != "held"]
    need(not any("lacks" in each.control.kind for each in missed), "what the controls attack")
    assert (missed, report.is_breached) == ([], False)
    assert [each.attack.id for each in report.results] == [attack.id for attack in chosen]
    assert seen == [layer for layer in LAYERS if layer != "service"]


@pytest.mark.requirement("RED-1")
def test_an_attack_gets_through_where_its_wall_is_off(tmp_path: Path) -> None:
    """The same attack, held with Landlock and through without it: the exit code tells."""
    done = in_process("redteam", "--only", LANDLOCK, "--json")
    data = json.loads(done.stdout)
    need(verdicts(data)[LANDLOCK] != "not-proved", "a control that can run in namespaces")
    assert (done.returncode, verdicts(data)) == (0, {LANDLOCK: "held"})
    with layer_dropout.LAYERS["Landlock"]():
        done = in_process("redteam", "--only", LANDLOCK, "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"], verdicts(data)) == (1, False, {LANDLOCK: "through"})


@pytest.mark.requirement("RED-1")
def test_an_attack_gets_through_where_the_configuration_is_weak(tmp_path: Path) -> None:
    config = tmp_path / "weak.toml"
    config.write_text("[policy]\ndangerously_observe = true\n")
    config.chmod(0o600)
    reports = [str(tmp_path / name) for name in ("a.xml", "a.sarif", "a.html")]
    files = dict(zip(("--junit", "--sarif", "--html"), reports, strict=True))
    words = [word for pair in files.items() for word in pair]
    done = in_process("redteam", "--only", "policy/sudo", "--config", str(config), "--json", *words)
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"], verdicts(data)) == (1, False, {"policy/sudo": "through"})
    assert len(ET.parse(reports[0]).findall(".//failure")) == 1
    assert json.loads(Path(reports[1]).read_text())["runs"][0]["results"][0]["kind"] == "fail"
    assert "1 of 1 attacks got through" in Path(reports[2]).read_text()


@pytest.mark.requirement("RED-1")
def test_a_text_that_is_only_annotated_got_through(tmp_path: Path) -> None:
    """The model reads the instruction, between marks; the control is the default setting."""
    name = "guard/ignore-previous-instructions"
    config = tmp_path / "weak.toml"
    found = []
    for weakness in ("", "[guard]\ndangerously_only_annotate = true\n"):
        config.write_text(weakness)
        config.chmod(0o600)
        done = in_process("redteam", "--only", name, "--config", str(config), "--json")
        found.append((done.returncode, verdicts(json.loads(done.stdout))[name]))
    assert found == [(0, "held"), (1, "through")]


@pytest.mark.requirement("RED-1")
def test_code_inside_cannot_report_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that prints a report, one that ends its program, and one that says nothing."""
    forged = json.dumps({"report": json.dumps({"a": ["refused", "EPERM"]}), "seal": "0" * 64})
    programs = {
        "prints": f"os.write(1, {forged!r}.encode())\nos._exit(0)",
        "prints_in_an_attack": (
            "@attack('a')\ndef _():\n"
            f"    os.write(1, {forged!r}.encode())\n"
            "    os.kill(os.getppid(), 9)\n"
        ),
        "says_nothing": "os._exit(0)",
        "fails": "raise SystemExit(3)",
        "honest": "@attack('a')\ndef _():\n    raise Stopped('no')\n",
    }
    text = (ATTACKS / "stage.py").read_text()
    monkeypatch.setattr(
        cell_programs,
        "program_text",
        lambda name: f"{text}\n{programs[name]}\nif __name__ == '__main__':\n    play()\n",
    )
    chosen = [next(attack for attack in attacks() if attack.program)]
    facts = cell_programs.facts_for(chosen) | {"only": ["a"]}

    async def tried(name: str) -> str:
        found = await cell_programs.run_inside(host, name, facts)
        return found["a"].kind if "a" in found else "no report"

    with trial_host(config=None, profile=None) as host:
        found = {name: anyio.run(tried, name) for name in programs}
    assert found.pop("honest") == "refused"
    assert set(found.values()) <= {"no report", "broken"}


@pytest.mark.requirement("RED-1")
def test_the_users_settings_are_attacked_without_the_users_things(
    tmp_path: Path, state_home: str
) -> None:
    config = tmp_path / "cellwall.toml"
    config.write_text(
        'profile = "paranoid"\n[limits]\nwall_s = 7.5\n[audit]\n'
        f'signing_key = "{tmp_path}/key.pem"\nwitness_directory = "{tmp_path}"\n'
        '[roles.users]\n"a.b" = "guest"\n[server]\nport = 9999\n'
    )
    config.chmod(0o600)
    before = load_settings(file=str(config), environ=os.environ)
    copy = tmp_path / "copy.toml"
    copy.write_text(effective_toml(before, vault_key=str(tmp_path / "vault.key")))
    copy.chmod(0o600)
    after = load_settings(file=str(copy), environ=os.environ)
    same = ("profile", "limits", "sandbox", "workspace", "policy", "egress", "guard", "roles")
    assert {name: getattr(after, name) for name in same} == {
        name: getattr(before, name) for name in same
    }
    assert (after.audit.signing_key, after.audit.witness_directory) == (None, None)
    untouched = sorted(os.listdir(state_home))
    assert in_process("redteam", "--only", "guard/base64", "--config", str(config)).returncode == 0
    assert sorted(os.listdir(state_home)) == untouched


def test_list_explain_and_unknown_names() -> None:
    listed = in_process("redteam", "--list", "--layer", "service").stdout.decode()
    assert "service/no-token " in listed
    shown = in_process("redteam", "--explain", "isolation/unshare-user").stdout.decode()
    assert "ISO-6" in shown
    assert "AML.T0105" in shown
    assert "kernel_calls.py" in shown
    for words in (("--only", "x/\x1b]0;y\x07"), ("--layer", "x"), ("--explain", "nothing")):
        done = in_process("redteam", *words)
        assert done.returncode == 125
        assert b"CW-REDTEAM-UNKNOWN" in done.stderr
        assert b"\x1b" not in done.stderr
    missing = in_process("redteam", "--only", "audit/removed", "--html", "/nonexistent/a.html")
    assert b"CW-OUTPUT-UNWRITABLE" in missing.stderr


@pytest.mark.requirement("RED-1")
@pytest.mark.long
def test_no_attack_of_the_whole_suite_gets_through() -> None:
    done = in_process("redteam", "--json")
    code, data = done.returncode, json.loads(done.stdout)
    through = [each for each in data["attacks"] if each["verdict"] == "through"]
    assert (code, through) == (0, [])
    assert data["counts"]["held"] >= 200
    assert {each["layer"] for each in data["attacks"] if each["verdict"] == "held"} == {
        each["layer"] for each in data["attacks"]
    }
