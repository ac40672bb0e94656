"""The evaluation of a real log: restarts, crashes, receivers that fail, and a log that is altered."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cellwall.audit.alerts.silences import Silence
from cellwall.audit.alerts.watch_state import WatchedElsewhere, WatchState, read_state, watching
from cellwall.audit.alerts.watcher import AlertWatcher
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.signers import parse_keys
from cellwall.audit.verify import verify
from cellwall.config.alerts_section import AlertsSection
from cellwall.core.errors import VaultError
from cellwall.core.outcomes import Event, EventKind
from unit.audit.alerts.alert_events import write_outcomes
from unit.audit.audit_logs import aged, lines_of, put_lines, relinked

pytestmark = pytest.mark.requirement("OBS-2")


def no_secret(name: str, place: object) -> bytes:
    raise VaultError("the vault is locked", code="CW-VAULT-LOCKED")


class Host:
    """A log, a file that receives alerts, and a clock that a test moves."""

    def __init__(self, tmp_path: Path) -> None:
        self.audit, self.folder = tmp_path / "audit", tmp_path / "alerts"
        self.file = tmp_path / "received.jsonl"
        self.later_s = 0.0
        self.silences: list[Silence] = []
        self.receivers: dict[str, dict] = {"file": {"kind": "file", "to": str(self.file)}}
        self.rules: dict[str, dict] = {"failures": {"hold_s": 0}}
        self.more: dict[str, int] = {}

    def clock(self) -> float:
        return time.time() + self.later_s

    def watcher(self, **options: object) -> AlertWatcher:
        section = {"rules": self.rules, "receivers": self.receivers, **self.more}
        return AlertWatcher(
            str(self.audit),
            str(self.folder),
            AlertsSection.model_validate(section),
            silences=lambda: self.silences,
            read_secret=no_secret,
            verify=self.verify,
            clock=self.clock,
            **options,
        )

    def verify(self) -> str:
        keys = parse_keys((self.audit / "trusted-keys").read_text())
        report = verify(str(self.audit), keys)
        return "" if report.ok else str(report.reason)

    def check(self) -> list[tuple[str, str]]:
        """What arrived in this pass."""
        before = len(self.received())
        self.watcher().check(deliver_within_s=30)
        return [(each["event"], each["alert"]["rule"]) for each in self.received()[before:]]

    def received(self) -> list[dict]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def state(self) -> WatchState:
        state = read_state(str(self.folder))
        assert state is not None
        return state


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def log(host: Host) -> Iterator[AuditLog]:
    settings = LogSettings(segment_bytes=16 * 1024, checkpoint_events=10**9, checkpoint_s=10**6)
    with AuditLog.open(str(host.audit), settings=settings) as opened:
        yield opened


def test_each_record_is_evaluated_once_over_restarts_and_rotation(host, log):
    write_outcomes(log, *["failed"] * 10)
    assert host.check() == []
    write_outcomes(log, *["failed"] * 9)
    log.seal()
    assert host.check() == []  # 19, if none counted twice
    write_outcomes(log, "failed")
    assert host.check() == [("firing", "failures")]
    (notice,) = host.received()
    assert notice["alert"]["reason"].startswith("20 of 20 (100.0 %)")
    assert notice["alert"]["records"][-1].startswith("evt_")
    assert host.check() == []  # sent already


def test_an_alert_is_resolved_once_and_repeated_while_it_fires(host, log):
    host.more = {"repeat_s": 600}
    write_outcomes(log, *["failed"] * 20)
    assert host.check() == [("firing", "failures")]
    host.later_s = 601
    assert host.check() == [("repeated", "failures")]
    host.later_s = 3000
    assert host.check() == [("resolved", "failures")]
    assert host.check() == []


def test_a_crash_before_the_delivery_loses_no_message_and_one_after_it_repeats_none(host, log):
    write_outcomes(log, *["failed"] * 20)
    host.receivers = {"file": {"kind": "file", "to": "/nonexistent/alerts.jsonl"}}
    assert host.check() == []  # as far as a process that was killed before it delivered
    assert [each.event for each in host.state().outboxes["file"].waiting] == ["firing"]
    host.receivers = {"file": {"kind": "file", "to": str(host.file)}}
    host.later_s = 700  # the pause after the failure is over
    assert host.check() == [("firing", "failures")]
    assert host.check() == []


def test_a_receiver_that_fails_stops_no_other_and_is_shown(host, log):
    stuck = threading.Event()

    def hang(name: str, place: object) -> bytes:
        stuck.wait(60)
        raise VaultError("the vault is locked", code="CW-VAULT-LOCKED")

    host.receivers["broken"] = {"kind": "file", "to": "/nonexistent/alerts.jsonl"}
    host.receivers["hangs"] = {"kind": "webhook", "to": "https://localhost/x", "secret": "KEY"}
    write_outcomes(log, *["failed"] * 20)
    watcher = host.watcher()
    watcher._read_secret = hang
    try:
        watcher.check(deliver_within_s=1)
    finally:
        stuck.set()
    assert [each["event"] for each in host.received()] == ["firing"]
    boxes = host.state().outboxes
    assert (boxes["broken"].code, boxes["broken"].failures) == ("CW-EXPORT-FILE", 1)
    assert [len(boxes[name].waiting) for name in ("file", "broken", "hangs")] == [0, 1, 1]


def test_only_one_process_evaluates(host, log):
    with watching(str(host.folder)), pytest.raises(WatchedElsewhere):
        host.check()


def test_a_silence_hides_messages_until_it_ends_and_shows_the_alert(host, log):
    def silence(rule: str) -> Silence:
        now_s = host.clock()
        return Silence(
            id="sil_1", rule=rule, until_s=now_s + 100, by="ann", reason="x", made_s=now_s
        )

    write_outcomes(log, *["failed"] * 20)
    host.silences = [silence("fail*")]
    assert host.check() == []
    host.later_s = 101
    assert host.check() == [("firing", "failures")]


def test_a_pattern_does_not_silence_tampering_and_its_name_does(host, log):
    write_outcomes(log, "failed", error_code="CW-VAULT-ROLLED-BACK")
    now_s = host.clock()
    pattern = Silence(id="s", rule="*", until_s=now_s + 100, by="a", reason="x", made_s=now_s)
    host.silences = [pattern]
    assert host.check() == [("firing", "tampering")]
    write_outcomes(log, "failed", error_code="CW-VAULT-SWAPPED")
    exact = Silence(id="s", rule="tampering", until_s=now_s + 99, by="a", reason="x", made_s=now_s)
    host.silences = [exact]
    assert host.check() == []


# --- a log that is altered


def cut(folder: Path) -> None:
    put_lines(folder, lines_of(folder)[:-5])


def replace_last(folder: Path) -> None:
    lines = lines_of(folder)
    put_lines(folder, [*lines[:-1], lines[-1].replace(b'"failed"', b'"passed"')])


def rewrite(folder: Path) -> None:
    lines = lines_of(folder)
    put_lines(folder, relinked([lines[0], *lines[2:]]))


def replace_log(folder: Path) -> None:
    (folder / "origin").write_text("cellwall.example/another\n")


def damage(folder: Path) -> None:
    lines = lines_of(folder)
    put_lines(folder, [*lines[:-1], lines[-1].replace(b'"kind":"outcome"', b'"kind":"zzz"')])


@pytest.mark.parametrize("attack", [cut, replace_last, rewrite, replace_log, damage])
def test_tampering_with_the_log_fires(host: Host, attack: Callable[[Path], None]):
    with AuditLog.open(str(host.audit)) as log:
        write_outcomes(log, *["failed"] * 9)
    assert host.check() == []  # the control: the same log untouched
    assert host.check() == []
    attack(host.audit)
    assert host.check() == [("firing", "tampering")]
    (notice,) = host.received()
    assert notice["alert"]["severity"] == "critical"
    assert "audit log" in notice["alert"]["reason"]
    assert str(host.audit) not in json.dumps(notice)


def test_a_failed_verification_of_the_old_part_of_the_log_fires(host, log):
    write_outcomes(log, *["ok"] * 5)
    host.check()
    host.later_s = 86_401
    problems: Sequence[str] = []
    watcher = host.watcher()
    watcher._verify = lambda: "; ".join(problems)
    watcher.check(deliver_within_s=30)
    assert host.received() == []
    problems = ["record 2 does not link"]
    host.later_s *= 2
    watcher = host.watcher()
    watcher._verify = lambda: "; ".join(problems)
    watcher.check(deliver_within_s=30)
    assert "record 2 does not link" in host.received()[0]["alert"]["reason"]


def test_a_damaged_state_is_told_and_evaluation_goes_on(host, log):
    write_outcomes(log, *["failed"] * 5)
    host.check()
    path = host.folder / "state.json"
    path.write_text('{"version": 1, "engine": 7}')
    os.chmod(path, 0o600)
    write_outcomes(log, *["failed"] * 15)
    assert host.check() == [("firing", "tampering"), ("firing", "failures")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"severity":"', b'"severity":"x'),
        (b'"retry_s":', b'"retry_s":[],"x":'),
        (b'"clock_s":', b'"clock_s":1e999,"x":'),
        (b'"seq":', b'"seq":"","x":'),
    ],
)
def test_a_damaged_state_that_is_still_json_ends_no_evaluation(host, log, before, after):
    host.receivers["file"]["to"] = str(host.folder / "absent" / "file")  # messages wait
    write_outcomes(log, *["failed"] * 20)
    host.check()
    path = host.folder / "state.json"
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))
    host.receivers["file"]["to"] = str(host.file)
    write_outcomes(log, "failed")
    assert ("firing", "tampering") in host.check()
    assert host.check() == []  # and the state is whole again


def test_a_first_look_at_an_old_log_reads_no_further_back_than_a_day(host, log):
    write_outcomes(log, *["failed"] * 30)
    host.later_s = 2 * 86_400
    assert host.check() == []
    assert host.state().position.seq >= 30


def test_a_service_evaluates_as_records_are_written(host, log):
    watcher = host.watcher(tick_s=0.05)
    watcher.start()
    try:
        for _ in range(20):
            log.write(Event(EventKind.OUTCOME, "a", "ann", "sdk", {"status": "leak"}))
        log.write(Event(EventKind.CONNECTION, "a", "ann", "sdk", {"status": "leak-refused"}))
        deadline = threading.Event()
        for _ in range(900):
            if host.received():
                break
            deadline.wait(0.05)
        seen = host.state().saved_s
        for _ in range(40):  # ticks without a record write nothing
            deadline.wait(0.02)
        assert host.state().saved_s == seen
    finally:
        watcher.stop()
    assert [each["alert"]["rule"] for each in host.received()] == ["leaks"]
    assert host.check() == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_files_that_retention_deleted_are_no_tampering_and_others_are(
    host: Host, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
):
    settings = LogSettings(keep_days=7)
    with AuditLog.open(str(host.audit), settings=settings) as log:
        write_outcomes(log, "ok")
        assert host.check() == []
        write_outcomes(log, "ok")
        log.seal()
        write_outcomes(log, "ok")
        audit = str(host.audit)
        maintain_segments(audit, settings, log.write, log.notary)
        if is_recorded:
            aged(monkeypatch, host.audit, 30, 1)
            assert maintain_segments(audit, settings, log.write, log.notary) == [1]
    if not is_recorded:
        for path in host.audit.glob("0000000000000001.*"):
            path.unlink()
    assert host.check() == ([] if is_recorded else [("firing", "tampering")])


def test_silences_that_cannot_be_read_hide_nothing(host, log):
    def broken() -> list[Silence]:
        raise VaultError("the list of silences is broken")

    write_outcomes(log, *["failed"] * 20)
    watcher = host.watcher()
    watcher._silences = broken
    watcher.check(deliver_within_s=30)
    assert [each["event"] for each in host.received()] == ["firing"]
