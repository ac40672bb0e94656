"""A control or a target that is not there never gives the verdict "held" (RED-1)."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.admin.redteam import audit_attacks, egress_servers, program_attacks
from cellwall.admin.redteam.service_attacks import _observe, _ServiceAnswer
from cellwall.admin.redteam.trial_host import TrialHost, remove_abandoned, trial_host
from cellwall.audit.segments import find_notes
from cellwall.redteam.attack import Attack, AttackResult, AttackVerdict
from cellwall.redteam.catalog import attacks, program_text

HELD, THROUGH, NOT_PROVED = AttackVerdict.HELD, AttackVerdict.THROUGH, AttackVerdict.NOT_PROVED
TRAPS = ("trap.example", "leak.trap.example")
Runner = Callable[[TrialHost, Sequence[Attack]], Awaitable[list[AttackResult]]]


def verdicts(runner: Runner, chosen: Sequence[Attack]) -> dict[str, AttackVerdict]:
    with trial_host(config=None, profile=None) as host:
        results = anyio.run(runner, host, chosen)
    return {each.attack.key or each.attack.id: each.verdict for each in results}


def of_program(name: str) -> list[Attack]:
    return [attack for attack in attacks() if attack.program == name]


@pytest.mark.slow
@pytest.mark.requirement("RED-1")
def test_without_a_neighbour_nothing_about_neighbours_is_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = of_program("neighbours")
    monkeypatch.setattr(
        program_attacks,
        "program_text",
        lambda name: "print('ready')" if name == "holder" else program_text(name),
    )
    assert set(verdicts(program_attacks.run, chosen).values()) == {NOT_PROVED}


@pytest.mark.requirement("RED-1")
@pytest.mark.parametrize("first", ["A", "B", "Z", "z", "9", "+", "/"])
def test_a_changed_checkpoint_is_still_read_as_one(first: str, tmp_path: Path) -> None:
    signature = f"\u2014 cellwall-audit {'A' * 100}\n"
    note = f"cellwall.audit/x\n8\n{first}{'C' * 42}=\n\n{signature}".encode()
    copy = audit_attacks._LogCopy(str(tmp_path), str(tmp_path))
    Path(copy.notes).write_bytes(note + b"\n")
    assert len(find_notes(note + b"\n")) == 1
    audit_attacks._change_checkpoint(copy)
    (changed,) = find_notes(Path(copy.notes).read_bytes())
    assert changed.split(b"\n")[2] != note.split(b"\n")[2]


@pytest.mark.requirement("RED-1")
def test_copies_of_a_log_that_do_not_verify_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [attack for attack in attacks() if attack.layer == "audit"]
    assert set(verdicts(audit_attacks.run, chosen).values()) == {HELD}
    original = shutil.copytree

    def copy_badly(source: str, target: str) -> Any:
        original(source, target)
        records = next(Path(target).glob("*.jsonl"))
        records.write_bytes(records.read_bytes() + b"{}\n")

    monkeypatch.setattr(audit_attacks.shutil, "copytree", copy_badly)
    assert HELD not in verdicts(audit_attacks.run, chosen).values()


@pytest.mark.requirement("RED-1")
def test_a_service_that_only_asks_to_wait_has_refused_nothing() -> None:
    assert _observe(_ServiceAnswer(403), b"").kind == "refused"
    assert _observe(_ServiceAnswer(200), b"").kind == "through"
    assert {_observe(_ServiceAnswer(status), b"").kind for status in (429, 408, 503, 0)} == {
        "broken"
    }


@pytest.mark.slow
@pytest.mark.requirement("RED-1", "NET-2")
def test_what_an_allowlist_allows_gets_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks on egress, where the rules name trap.example, and the resolver is asked."""
    rules = egress_servers.EgressServers.rules.fget

    def generous(self: egress_servers.EgressServers) -> tuple[str, ...]:
        return (*rules(self), *(f"{name}:{self.ports['good']}" for name in TRAPS))

    monkeypatch.setattr(egress_servers.EgressServers, "rules", property(generous))
    found = verdicts(program_attacks.run, of_program("egress"))
    through = {name for name, verdict in found.items() if verdict is THROUGH}
    assert through >= {
        *(f"name-by-{way}" for way in ("connect", "absolute", "socks")),
        "question-for-a-forbidden-name",
    }
    assert Counter(found.values())[NOT_PROVED] <= 2, "ports 80 and 443 need root"
    assert found["another-port"] is HELD


@pytest.mark.requirement("RED-1")
def test_folders_of_killed_runs_are_removed_and_no_others(tmp_path: Path) -> None:
    names = ("cellwall-redteam-killed", "cellwall-redteam-running", "cellwall-redteam-new", "other")
    for name in names:
        (tmp_path / name / "state").mkdir(parents=True)
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / "cellwall-redteam-new")
    (tmp_path / "cellwall-redteam-link").symlink_to(tmp_path / "other")
    running = os.open(tmp_path / "cellwall-redteam-running", os.O_RDONLY)
    try:
        fcntl.flock(running, fcntl.LOCK_EX)
        remove_abandoned(str(tmp_path))
    finally:
        os.close(running)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted({*names[1:], "cellwall-redteam-link"})
    assert (tmp_path / "other" / "state").is_dir()


@pytest.mark.slow
@pytest.mark.requirement("RED-1", "NET-2")
def test_a_cell_without_egress_proves_nothing_about_its_allowlist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused connection to the proxy itself is no refusal of the proxy."""
    monkeypatch.setattr(egress_servers.EgressServers, "rules", ())
    found = verdicts(program_attacks.run, of_program("egress"))
    assert set(found.values()) == {NOT_PROVED}
