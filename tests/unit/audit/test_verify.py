"""The offline check names the first bad record and reading never shows an altered one."""

from __future__ import annotations

import json
import os
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.audit import chain
from holdfast.audit.log import AuditLog
from holdfast.audit.verify import VerifyReport, read, verify
from holdfast.core.errors import AuditFailed
from holdfast.core.events import Event, EventKind

COUNT = 8
EVENTS = [
    Event(EventKind.INTENT, f"act_{number // 2}", "ann", "sdk", {"number": number, "text": "a b"})
    for number in range(COUNT)
]

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def lines(folder) -> list[bytes]:
    with AuditLog.open(str(folder)) as log:
        for event in EVENTS:
            log.write(event)
    return (folder / "audit.jsonl").read_bytes().splitlines()


def check(folder, lines: list[bytes]) -> VerifyReport:
    (folder / "audit.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return verify(str(folder))


def bad(number: int, reason: str) -> VerifyReport:
    return VerifyReport(False, number - 1, number, f"record {number}: {reason}")


def reseal(line: bytes, **changes) -> bytes:
    """A forged record whose own hash is right."""
    record = json.loads(line) | changes
    del record["hash"]
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    record["hash"] = sha256(text.encode()).hexdigest()
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def test_untouched_log_verifies(folder, lines):
    assert check(folder, lines) == VerifyReport(True, COUNT, None, "")
    with AuditLog.open(str(folder)) as log:
        assert log.verify() == VerifyReport(True, COUNT, None, "")


def test_empty_log_verifies(folder):
    with AuditLog.open(str(folder)) as log:
        assert log.verify() == VerifyReport(True, 0, None, "")


def test_missing_log_does_not_verify(folder):
    assert verify(str(folder)) == VerifyReport(False, 0, None, "there is no audit log")


@shared_folder
@given(data=st.data())
def test_any_altered_byte_is_found_at_its_record(folder, lines, data):
    index = data.draw(st.integers(0, COUNT - 1))
    position = data.draw(st.integers(0, len(lines[index]) - 1))
    was = lines[index][position]
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (was, 10)))
    altered = bytearray(lines[index])
    altered[position] = byte
    report = check(folder, [*lines[:index], bytes(altered), *lines[index + 1 :]])
    assert (report.ok, report.records, report.first_bad) == (False, index, index + 1)


@shared_folder
@given(index=st.integers(0, COUNT - 2))
def test_altered_and_resealed_record_breaks_the_next_link(folder, lines, index):
    forged = reseal(lines[index], principal="bob")
    assert check(folder, [*lines[:index], forged, *lines[index + 1 :]]) == bad(
        index + 2, "it was chained to another record than the one before it"
    )


@shared_folder
@given(index=st.integers(0, COUNT - 2), count=st.integers(1, COUNT))
def test_removed_records_are_found(folder, lines, index, count):
    rest = lines[min(index + count, COUNT - 1) :]
    follower = json.loads(rest[0])["seq"]
    assert check(folder, lines[:index] + rest) == bad(index + 1, f"it says it is record {follower}")


@shared_folder
@given(order=st.permutations(range(COUNT)).filter(lambda order: order != list(range(COUNT))))
def test_reordered_records_are_found(folder, lines, order):
    first = next(index for index in range(COUNT) if order[index] != index)
    assert check(folder, [lines[index] for index in order]) == bad(
        first + 1, f"it says it is record {order[first] + 1}"
    )


@shared_folder
@given(index=st.integers(0, COUNT - 1), to=st.integers(0, COUNT))
def test_doubled_record_is_found(folder, lines, index, to):
    report = check(folder, [*lines[:to], lines[index], *lines[to:]])
    # Put right before itself it is the first of two equals, so the second is the bad one.
    first_bad = to + 2 if to == index else to + 1
    assert (report.ok, report.first_bad) == (False, first_bad)


@shared_folder
@given(index=st.integers(0, COUNT - 1))
def test_inserted_record_is_found_even_if_forged_to_fit(folder, lines, index):
    prev = chain.line_digest(lines[index - 1]) if index else chain.GENESIS
    forged = reseal(lines[0], seq=index + 1, prev=prev, principal="bob")
    assert check(folder, [*lines[:index], forged, *lines[index:]]) == bad(
        index + 2, f"it says it is record {index + 1}"
    )


def test_renumbered_records_after_a_removal_are_found(folder, lines):
    renumbered = [reseal(line, seq=number) for number, line in enumerate(lines[1:], start=1)]
    assert check(folder, renumbered) == bad(
        1, "it was chained to another record than the one before it"
    )


@pytest.mark.parametrize("extra", [b"\n", b"{}\n", b"\xff\n", b"x" * 300_000 + b"\n"])
def test_foreign_line_is_found(folder, lines, extra):
    path = folder / "audit.jsonl"
    path.write_bytes(path.read_bytes() + extra)
    report = verify(str(folder))
    assert (report.ok, report.records, report.first_bad) == (False, COUNT, COUNT + 1)


def test_unfinished_record_at_the_end_is_named(folder, lines):
    path = folder / "audit.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert verify(str(folder)) == bad(COUNT, "it is not complete")


def test_read_gives_whole_records_in_order(folder, lines):
    assert list(read(str(folder))) == [json.loads(line) for line in lines]


def test_read_of_one_action_gives_only_its_records(folder, lines):
    assert list(read(str(folder), action_id="act_2")) == [json.loads(line) for line in lines[4:6]]
    assert list(read(str(folder), action_id="act_")) == []


def test_read_is_not_fooled_by_an_id_inside_a_body(folder):
    with AuditLog.open(str(folder)) as log:
        log.write(Event(EventKind.INTENT, "act_real", "ann", "sdk", {"action_id": "act_other"}))
    assert list(read(str(folder), action_id="act_other")) == []


def test_read_without_a_log_gives_nothing(folder):
    assert list(read(str(folder))) == []


def test_read_leaves_out_an_unfinished_record(folder, lines):
    path = folder / "audit.jsonl"
    path.write_bytes(path.read_bytes() + b'{"action_id":')
    assert [record["seq"] for record in read(str(folder))] == list(range(1, COUNT + 1))


def test_read_refuses_an_altered_record(folder, lines):
    check(folder, [lines[0], lines[1].replace(b"ann", b"bob"), *lines[2:]])
    records = read(str(folder))
    assert next(records) == json.loads(lines[0])
    with pytest.raises(AuditFailed) as caught:
        next(records)
    assert (caught.value.code, caught.value.message) == (
        "HF-AUDIT-ALTERED",
        "record 2 of the audit log was altered: its content does not match its hash",
    )


@pytest.mark.parametrize("plant", ["symlink", "fifo", "folder"])
def test_log_that_is_no_plain_file_is_refused(folder, tmp_path, plant):
    folder.mkdir(mode=0o700)
    path = folder / "audit.jsonl"
    match plant:
        case "symlink":
            path.symlink_to(tmp_path)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    for look in (verify, lambda name: list(read(name))):
        with pytest.raises(AuditFailed) as caught:
            look(str(folder))
        assert (caught.value.code, str(folder) in str(caught.value)) == ("HF-AUDIT-FAILED", False)
