"""Forwarding: every record arrives at least once, in order, whatever is killed or away."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellwall.audit.export.forwarding import Forwarder, ForwardMark, read_state
from cellwall.audit.export.sinks import Receipt
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import FoundRecord
from cellwall.core.outcomes import Event, EventKind
from cellwall.secrets.session_keys import SessionKeys
from unit.audit.audit_logs import aged, event, lines_of, put_lines, relinked, sign
from unit.audit.export_receivers import (
    Certificates,
    StreamReceiver,
    listening,
    make_certificates,
    read_frames,
    read_message,
)

_DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog.open(str(tmp_path / "audit")) as opened:
        yield opened


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def target(port: int, certificates: Certificates, **options: object) -> ExportTarget:
    given = {"ca_file": certificates.ca_file, **options}
    return ExportTarget.parse("syslog", f"tls://127.0.0.1:{port}", **given)


@contextmanager
def forwarding(
    tmp_path: Path, goal: ExportTarget, keys: SessionKeys | None = None
) -> Iterator[Forwarder]:
    folder = str(tmp_path / "forward")
    forwarder = Forwarder(str(tmp_path / "audit"), folder, goal, keys, pause_s=0.05)
    forwarder.start()
    try:
        yield forwarder
    finally:
        forwarder.stop()


def records(receiver: StreamReceiver) -> list[dict]:
    """What has arrived, in order; a connection that was cut has less than its last frame says."""
    found = []
    for data in list(receiver.got):
        try:
            frames = read_frames(data)
        except (ValueError, AssertionError, IndexError):
            continue  # killed within a batch: not counted, so it comes again
        found += [json.loads(read_message(frame).text) for frame in frames]
    return found


def numbers(receiver: StreamReceiver) -> list[int]:
    return [record["seq"] for record in records(receiver)]


def state(tmp_path: Path):
    return read_state(str(tmp_path / "forward"))


@pytest.mark.requirement("AUD-4")
def test_records_are_forwarded_as_they_are_written_and_never_twice_without_need(
    log, tmp_path, certificates
):
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        goal = target(receiver.port, certificates)
        with forwarding(tmp_path, goal):
            until(lambda: numbers(receiver) == [1])
            for number in range(5):
                log.write(event(number))
            until(lambda: state(tmp_path).seq == 6)
            assert state(tmp_path).is_running
        log.write(event(7))
        log.seal()
        log.write(event(8))
        with forwarding(tmp_path, goal):
            until(lambda: state(tmp_path).seq == 9)
        assert numbers(receiver) == list(range(1, 10))
        stored = [line for first in (1, 9) for line in lines_of(tmp_path / "audit", first)]
        assert [json.loads(line) for line in stored] == records(receiver)
    assert not state(tmp_path).is_running


_CHILD = """
import sys
from cellwall.audit.export.forwarding import Forwarder
from cellwall.audit.export.sinks import Receipt
from cellwall.audit.export.target import ExportTarget
audit, folder, port, ca = sys.argv[1:]
goal = ExportTarget.parse("syslog", f"tls://127.0.0.1:{port}", ca_file=ca)
Forwarder(audit, folder, goal, None, pause_s=0.05).run()
"""


@pytest.mark.slow
@pytest.mark.requirement("AUD-4")
def test_a_killed_forwarder_loses_no_record_and_leaves_no_gap(log, tmp_path, certificates):
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        place = (str(tmp_path / "audit"), str(tmp_path / "forward"))
        words = [sys.executable, "-c", _CHILD, *place, str(receiver.port), certificates.ca_file]
        written = 1
        for kill in range(4):
            child = subprocess.Popen(words)
            try:
                had = len(receiver.got)
                # Killed while it sends: some of these arrive, and the bookmark may be behind.
                for _ in range(200 + 50 * kill):
                    log.write(event(written))
                    written += 1
                until(lambda had=had: len(receiver.got) > had)
            finally:
                child.send_signal(signal.SIGKILL)
                child.wait()
        with forwarding(tmp_path, target(receiver.port, certificates)):
            until(lambda: state(tmp_path).seq == written)
    first_times = list(dict.fromkeys(numbers(receiver)))
    assert first_times == list(range(1, written + 1))


@pytest.mark.requirement("AUD-4")
def test_a_receiver_that_is_away_delays_no_write(log, tmp_path, certificates):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with forwarding(tmp_path, target(port, certificates)):
        until(lambda: state(tmp_path).state == "retrying")
        assert state(tmp_path).code == "CW-EXPORT-AWAY"
        for number in range(50):
            log.write(event(number))
        assert state(tmp_path).seq == 0
        listener = socket.create_server(("127.0.0.1", port))
        with StreamReceiver(listener, certificates.server()).running() as receiver:
            until(lambda: state(tmp_path).seq == 51)
            assert state(tmp_path).state == "ok"
    assert numbers(receiver) == list(range(1, 52))


@pytest.mark.requirement("AUD-4")
def test_a_receiver_whose_authority_is_unknown_gets_nothing(log, tmp_path, certificates):
    other = tmp_path / "other"
    other.mkdir()
    stranger = make_certificates(other)
    with StreamReceiver(listening(), stranger.server()).running() as receiver:
        with forwarding(tmp_path, target(receiver.port, certificates)):
            until(lambda: state(tmp_path).code == "CW-EXPORT-TLS")
        assert (numbers(receiver), state(tmp_path).seq) == ([], 0)
        # The same receiver, once its authority is trusted.
        with forwarding(tmp_path, target(receiver.port, stranger)):
            until(lambda: state(tmp_path).seq == 1)


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize(
    "wrong",
    [{"host": "127.0.0.9"}, {"end": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}],
    ids=["name", "expired"],
)
def test_a_receiver_with_a_wrong_certificate_of_the_right_authority_gets_nothing(
    log, tmp_path, wrong
):
    bad = make_certificates(tmp_path, **wrong)
    with StreamReceiver(listening(), bad.server()).running() as receiver:
        with forwarding(tmp_path, target(receiver.port, bad)):
            until(lambda: state(tmp_path).code == "CW-EXPORT-TLS")
        assert records(receiver) == []
    assert state(tmp_path).seq == 0


@pytest.mark.requirement("AUD-4")
def test_a_receiver_may_ask_for_a_certificate(log, tmp_path, certificates):
    context = certificates.server(asks_for_client=True)
    with StreamReceiver(listening(), context).running() as receiver:
        with forwarding(tmp_path, target(receiver.port, certificates)):
            until(lambda: state(tmp_path).state == "retrying")
        assert state(tmp_path).seq == 0
        shown = {
            "client_cert_file": certificates.cert_file,
            "client_key_file": certificates.key_file,
        }
        with forwarding(tmp_path, target(receiver.port, certificates, **shown)):
            until(lambda: state(tmp_path).seq == 1)


@pytest.mark.requirement("AUD-4", "FS-5")
def test_bodies_are_decrypted_for_the_receiver_and_wait_while_the_vault_is_locked(
    tmp_path, certificates
):
    writing = SessionKeys(str(tmp_path))
    with AuditLog.open(str(tmp_path / "audit"), keys=writing) as log:
        log.write(Event(EventKind.INTENT, "act_1", "ann", "cli", {"code": "canary"}, "sbx_1"))
        private = tmp_path / "session-keys" / "private"
        private.rename(tmp_path / "away")
        with StreamReceiver(listening(), certificates.server()).running() as receiver:
            goal = target(receiver.port, certificates)
            keys = SessionKeys(str(tmp_path))
            with forwarding(tmp_path, goal, keys):
                until(lambda: state(tmp_path).state == "locked")
                assert (receiver.got, state(tmp_path).seq) == ([], 0)
                (tmp_path / "away").rename(private)
                until(lambda: state(tmp_path).seq == 2)
            assert records(receiver)[1]["body"] == {"code": "canary"}
            log.write(Event(EventKind.OUTCOME, "act_1", "ann", "cli", {"status": "ok"}, "sbx_1"))
            keys.destroy("sbx_1")
            with forwarding(tmp_path, goal, keys):
                until(lambda: state(tmp_path).seq == 3)
            assert records(receiver)[2]["body"] == {"sealed": "erased", "status": "ok"}
            keys.close()


@pytest.mark.requirement("AUD-4")
def test_records_that_a_power_cut_took_back_are_not_skipped_when_others_take_their_numbers(
    tmp_path, certificates
):
    audit = tmp_path / "audit"
    with AuditLog.open(str(audit)) as log:
        log.write(event(1))
        sign(log)  # 2 records
        for number in range(2, 5):
            log.write(event(number))
    lines = lines_of(audit)
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        goal = target(receiver.port, certificates)
        with forwarding(tmp_path, goal):
            until(lambda: state(tmp_path).seq == 5)
        # The disk has only what was flushed; then other records get the numbers 3 to 5.
        others = [line.replace(b'"n":', b'"instead":') for line in lines[2:]]
        assert others != lines[2:]
        put_lines(audit, relinked([*lines[:2], *others]))
        notes = audit / "0000000000000001.checkpoints"
        kept = notes.read_bytes().split(b"\n\n")
        notes.write_bytes(b"\n\n".join(kept[:4]) + b"\n\n")
        with forwarding(tmp_path, goal):
            until(lambda: len(records(receiver)) >= 8)
    again = records(receiver)[5:]
    assert [record["seq"] for record in again][-3:] == [3, 4, 5]
    assert all("instead" in json.dumps(record["body"]) for record in again[-3:])


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize(
    ("old", "new"), [(b'"n":2', b'"n":7'), (b'"seq":4,', b'"seq":9,')], ids=["body", "number"]
)
def test_an_altered_record_is_reported_and_does_not_keep_the_processor_busy(tmp_path, old, new):
    audit, tries = tmp_path / "audit", []

    class Nowhere:
        def __init__(self, _: ExportTarget) -> None:
            tries.append(self)

        def send(self, batch: Sequence[FoundRecord]) -> Receipt:
            return Receipt()

        def close(self) -> None:
            pass

    with AuditLog.open(str(audit)) as log:
        for number in range(4):
            log.write(event(number))
    lines, goal = lines_of(audit), ExportTarget.parse("syslog", "tls://127.0.0.1:1")
    put_lines(audit, [line.replace(old, new) for line in lines])
    assert lines_of(audit) != lines
    folder = str(tmp_path / "forward")
    forwarder = Forwarder(str(audit), folder, goal, None, pause_s=3600, open_sink=Nowhere)
    forwarder.start()
    try:
        until(lambda: state(tmp_path).code == "CW-AUDIT-ALTERED")
    finally:
        forwarder.stop()
    assert state(tmp_path).seq == 0
    assert len(tries) == 1
    put_lines(audit, lines)
    forwarder = Forwarder(str(audit), folder, goal, None, open_sink=Nowhere)
    forwarder.start()
    try:
        until(lambda: state(tmp_path).seq == 5)
    finally:
        forwarder.stop()


@pytest.mark.requirement("AUD-4")
def test_retention_deletes_nothing_that_was_not_forwarded(tmp_path, monkeypatch):
    folder = tmp_path / "forward"
    folder.mkdir(mode=0o700)
    settings = LogSettings(keep_days=1, forward_folder=str(folder))
    with AuditLog.open(str(tmp_path / "audit"), settings=settings) as log:
        log.write(event(1))
        log.seal()
        log.write(event(2))
        audit = str(tmp_path / "audit")
        maintain_segments(audit, settings, log.write, log.notary)
        aged(monkeypatch, tmp_path / "audit", 30, 1)
        assert maintain_segments(audit, settings, log.write, log.notary) == []
        mark = os.open(folder / "bookmark", os.O_RDWR | os.O_CREAT, 0o600)
        ForwardMark(mark).move(3, "0" * 64)
        os.close(mark)
        assert maintain_segments(audit, settings, log.write, log.notary) == [1]
