"""Searches find what a look through every record finds, whatever became of the index."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.audit import following
from cellwall.audit import search as search_module
from cellwall.audit import segments as segments_module
from cellwall.audit.following import follow
from cellwall.audit.index import ROW_BYTES
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import Query, search
from cellwall.audit.segments import BLOCK_BYTES
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.verdict import Verdict
from unit.audit.audit_logs import (
    NEVER,
    all_records,
    event,
    lines_of,
    packed_path,
    put_lines,
    records_path,
)

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
NAMES = ["ann", "bob", 'q"uote', "\u00e9"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Two packed segments, a plain sealed one, and a growing one with a part not indexed."""
    folder = tmp_path_factory.mktemp("search") / "audit"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(40):
            kind = (EventKind.INTENT, EventKind.OUTCOME, EventKind.DENIAL)[number % 3]
            verdict = list(Verdict)[number % 3].word
            body: dict = {"text": f"number {number} \u00fc", "verdict": verdict}
            if number % 4 == 0:
                body = {"a": {"verdict": "allow"}, "decision": {"verdict": verdict}}
            log.write(
                Event(
                    kind, f"act_{number // 2}", NAMES[number % 4], "sdk", body, f"sbx_{number % 5}"
                )
            )
            if number in (8, 19, 37):
                log.seal()
            if number in (20, 35):
                maintain_segments(str(folder), NEVER, log.write, log.notary)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    shutil.copytree(built, tmp_path / "audit")
    return tmp_path / "audit"


def naive(folder: Path, query: Query) -> list[int]:
    found = []
    for record in all_records(folder):
        decision = record["body"].get("decision")
        verdict = decision["verdict"] if decision else record["body"].get("verdict")
        time = datetime.fromisoformat(record["time"])
        matches = [
            all(
                getattr(query, name) in (None, record[name])
                for name in ("id", "action_id", "session_id", "principal")
            ),
            query.kind is None or record["kind"] == query.kind.value,
            query.verdict is None or verdict == query.verdict.word,
            query.since is None or time >= query.since,
            query.until is None or time < query.until,
            query.text is None or query.text in str(record["body"]) or query.text in str(record),
        ]
        if all(matches):
            found.append(record["seq"])
    return found


def seqs(found) -> list[int]:
    return [each.record["seq"] for each in found]


def maybe(values):
    return st.none() | st.sampled_from(values)


@st.composite
def queries(draw, times):
    offset = timedelta(microseconds=draw(st.integers(-1, 1)))
    since, until = draw(maybe(times)), draw(maybe(times))
    return Query(
        action_id=draw(maybe(["act_3", "act_19", "act_", ""])),
        session_id=draw(maybe(["sbx_1", "sbx_9"])),
        principal=draw(maybe(NAMES)),
        kind=draw(maybe([EventKind.INTENT, EventKind.DENIAL, EventKind.SEAL, EventKind.HOLD])),
        verdict=draw(maybe(list(Verdict))),
        since=since and since + offset,
        until=until and until + offset,
        text=draw(maybe(["number 1", "number 31", "nowhere"])),
    )


@many
@given(data=st.data())
def test_search_finds_what_a_look_at_everything_finds(built, data):
    times = [datetime.fromisoformat(each["time"]) for each in all_records(built)]
    query = data.draw(queries(times))
    wanted = naive(built, query)
    assert seqs(search(str(built), query)) == wanted[::-1]


def test_search_with_an_id_finds_the_one(built):
    for record in all_records(built):
        (found,) = search(str(built), Query(id=record["id"]))
        assert found.record == record


def test_lines_are_those_of_the_log(built):
    growing = max(built.glob("*.jsonl"))
    lines = growing.read_bytes().splitlines()
    found = list(islice(search(str(built), Query()), len(lines)))
    assert [each.line for each in found] == lines[::-1]


QUERIES = [
    Query(principal="ann"),
    Query(kind=EventKind.DENIAL),
    Query(verdict=Verdict.DENY),
    Query(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC)),
    Query(principal="bob", text="number"),
]


def remade(whole: bytes, rows: bytes) -> bytes:
    """An index as somebody makes it who knows how: its checksum is right."""
    head = whole[:8] + struct.pack("<QI12x", len(rows) // ROW_BYTES, zlib.crc32(rows))
    return head + rows


def wrong_ends(whole: bytes) -> bytes:
    rows = bytearray(whole[32:])
    for at in range(0, len(rows), ROW_BYTES):
        rows[at : at + 8] = struct.pack("<Q", struct.unpack_from("<Q", rows, at)[0] + 5)
    return remade(whole, bytes(rows))


def wrong_leaf_in_the_middle(whole: bytes) -> bytes:
    rows = bytearray(whole[32:])
    at = (len(rows) // ROW_BYTES // 2) * ROW_BYTES
    for number in range(4):
        rows[at + 16 + number * ROW_BYTES] ^= 1
    return remade(whole, bytes(rows))


def far_beyond(whole: bytes) -> bytes:
    rows = bytearray(whole[32:])
    rows[-ROW_BYTES : -ROW_BYTES + 8] = struct.pack("<Q", 1 << 62)
    return remade(whole, bytes(rows))


SPOILS = {
    "lost": None,
    "empty": lambda whole: b"",
    "torn": lambda whole: whole[:100],
    "nonsense": lambda whole: b"\xff" * len(whole),
    "short": lambda whole: remade(whole, whole[32 : 32 + 2 * ROW_BYTES]),
    "byte": lambda whole: whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
    "ends": wrong_ends,
    "leaf": wrong_leaf_in_the_middle,
    "huge": lambda whole: whole[:8] + struct.pack("<Q", 1 << 39) + whole[16:],
}


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_damaged_index_leads_to_the_same_findings(folder, spoil, query):
    for path in folder.glob("*.index"):
        if spoil is None:
            path.unlink()
        else:
            path.write_bytes(spoil(path.read_bytes()))
    wanted = naive(folder, query)
    assert sorted(seqs(search(str(folder), query))) == wanted, "none twice, none missing"


def test_altered_record_is_not_shown(folder):
    first = int(max(folder.glob("*.jsonl")).name[:16])
    lines = lines_of(folder, first)
    put_lines(folder, [lines[0], lines[1].replace(b'"sdk"', b'"s\\u0064k"'), *lines[2:]], first)
    with pytest.raises(AuditFailed) as caught:
        list(search(str(folder), Query()))
    assert caught.value.code == "CW-AUDIT-ALTERED"


def test_damaged_packed_segment_is_told(folder):
    packed_path(folder).write_bytes(b"nonsense")
    with pytest.raises(AuditFailed) as caught:
        list(search(str(folder), Query(text="number")))
    assert caught.value.code == "CW-AUDIT-ALTERED"


@pytest.mark.parametrize("plant", ["symlink", "fifo", "folder"])
def test_log_that_is_no_plain_file_is_refused(folder, plant):
    path = max(folder.glob("*.jsonl"))
    path.unlink()
    match plant:
        case "symlink":
            path.symlink_to("elsewhere")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    with pytest.raises(AuditFailed) as caught:
        list(search(str(folder), Query()))
    assert str(folder) not in str(caught.value)


def test_search_without_a_log_gives_nothing(tmp_path):
    assert list(search(str(tmp_path / "nowhere"), Query())) == []


def test_search_leaves_out_an_unfinished_record(folder):
    path = max(folder.glob("*.jsonl"))
    wanted = seqs(search(str(folder), Query()))
    path.write_bytes(path.read_bytes() + b'{"action_id":')
    assert seqs(search(str(folder), Query())) == wanted


def test_search_is_not_fooled_by_an_id_inside_a_body(tmp_path):
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(Event(EventKind.INTENT, "act_real", "ann", "sdk", {"action_id": "act_other"}))
    assert list(search(str(folder), Query(action_id="act_other"))) == []


def test_segment_packed_in_the_middle_of_a_search_is_not_left_out(folder, monkeypatch):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(1))
        wanted = seqs(search(str(folder), Query()))
        real = search_module.list_segments

        def list_then_pack(directory):
            listed = real(directory)
            monkeypatch.undo()
            maintain_segments(directory, NEVER, log.write, log.notary)
            return listed

        monkeypatch.setattr(search_module, "list_segments", list_then_pack)
        assert records_path(folder, 24).exists()
        assert seqs(search(str(folder), Query())) == wanted
        assert not records_path(folder, 24).exists()


def test_search_that_is_not_read_to_its_end_leaves_nothing_behind(folder):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        found = search(str(folder), Query(principal="ann"))
        next(found)
        found.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_follow_gives_what_is_written_from_now_on_across_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        found = follow(str(folder), Query(kind=EventKind.INTENT))
        assert next(found) is None
        ids = [log.write(event(1))]
        log.seal()
        ids.append(log.write(event(2)))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        ids.append(log.write(event(3)))
        given = list(islice(found, 3))
        assert [each.record["id"] for each in given] == ids
        assert next(found) is None
        with records_path(folder, 4).open("ab") as file:
            file.write(b'{"torn')
        assert next(found) is None
        found.close()


def test_follow_goes_through_a_segment_that_was_packed_before_it_came(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        found = follow(str(folder), Query(kind=EventKind.INTENT))
        assert next(found) is None
        ids = []
        for number in range(1, 4):
            ids.append(log.write(event(number)))
            log.seal()
        ids.append(log.write(event(4)))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        assert len(list(folder.glob("*.zst"))) == 3
        assert [each.record["id"] for each in islice(found, 4)] == ids
        assert next(found) is None
        found.close()


def test_follow_goes_on_after_segments_that_were_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        found = follow(str(folder), Query(kind=EventKind.INTENT))
        assert next(found) is None
        log.seal()
        log.write(event(1))
        log.seal()
        last = log.write(event(2))
        maintain_segments(str(folder), replace(NEVER, keep_days=0), log.write, log.notary)
        assert [each.record["id"] for each in islice(found, 1)] == [last]
        found.close()


def test_follow_refuses_a_packed_segment_without_its_seal(tmp_path):
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        data = records_path(folder).read_bytes()
        found = follow(str(folder), Query())
        packed_path(folder).write_bytes(zstandard.compress(data))
        records_path(folder).unlink()
        with pytest.raises(AuditFailed) as caught:
            list(islice(found, 10))
        assert caught.value.code == "CW-AUDIT-ALTERED"
        records_path(folder).write_bytes(data)


def test_follow_goes_on_after_a_batch_was_taken_back(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    folder = tmp_path / "other"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(3):
            log.write(event(number))
    path = records_path(folder)
    lines = lines_of(folder)
    path.write_bytes(b"".join(line + b"\n" for line in lines[:2]) + lines[2][:40])
    found = follow(str(folder), Query())
    assert next(found) is None, "a record that is being written is not new until it is whole"
    put_lines(folder, lines[:3])
    assert next(found).line == lines[2]
    assert next(found) is None
    put_lines(folder, lines[:2])
    assert next(found) is None
    put_lines(folder, [*lines[:2], lines[3]])
    assert next(found).line == lines[3]
    found.close()


def test_follow_waits_for_a_log_to_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    folder = tmp_path / "other"
    found = follow(str(folder), Query(kind=EventKind.INTENT))
    assert next(found) is None
    with AuditLog.open(str(folder), settings=NEVER) as log:
        first = log.write(event(0))
        assert next(each for each in found if each).record["id"] == first
    found.close()


# --- files that change or do not end


@pytest.fixture(scope="module")
def written_long(tmp_path_factory) -> Path:
    """One growing segment of several blocks. Each of its records waits for the disk."""
    folder = tmp_path_factory.mktemp("written") / "long"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(700):
            log.write(event(number, text="x" * 4000))
    assert records_path(folder).stat().st_size > 2 * BLOCK_BYTES
    return folder


@pytest.fixture
def long(written_long, tmp_path) -> Path:
    return Path(shutil.copytree(written_long, tmp_path / "long"))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("text", [None, "act_69"])
@pytest.mark.slow
def test_records_across_blocks_are_all_found(long, is_packed, text):
    lines = lines_of(long)
    if is_packed:
        packed_path(long).write_bytes(zstandard.compress(records_path(long).read_bytes()))
        records_path(long).unlink()
    wanted = [line for line in lines if text is None or text.encode() in line]
    assert [each.line for each in search(str(long), Query(text=text))] == wanted[::-1]


@pytest.mark.parametrize("query", [Query(), Query(principal="ann"), Query(text="act_")])
@pytest.mark.parametrize("left", [0, 100, BLOCK_BYTES])
@pytest.mark.slow
def test_log_that_is_cut_in_the_middle_of_a_search_kills_nobody(long, query, left):
    found = search(str(long), query)
    first = next(found).record["seq"]
    os.truncate(records_path(long), left)
    rest = seqs(found)
    assert rest == sorted(set(rest), reverse=True)
    assert all(seq < first for seq in rest)


def test_newest_records_are_found_without_reading_the_rest(long):
    with records_path(long).open("r+b") as file:
        file.write(b"\0" * 1000)
    assert len(list(islice(search(str(long), Query()), 20))) == 20


def test_end_that_is_no_record_is_left_out_however_long(folder):
    path = max(folder.glob("*.jsonl"))
    wanted = seqs(search(str(folder), Query()))
    os.truncate(path, path.stat().st_size + 3 * BLOCK_BYTES + 5)
    assert seqs(search(str(folder), Query())) == wanted


def test_line_without_end_is_told(folder):
    path = max(folder.glob("*.jsonl"))
    path.write_bytes(b"x\n" + b"x" * (2 * BLOCK_BYTES) + b"\n" + path.read_bytes())
    with pytest.raises(AuditFailed) as caught:
        list(search(str(folder), Query(text="number")))
    assert caught.value.code == "CW-AUDIT-ALTERED"


def test_packed_segment_without_end_is_told(folder, monkeypatch):
    monkeypatch.setattr(segments_module, "MAX_SEGMENT_BYTES", 2 * BLOCK_BYTES)
    packed_path(folder).write_bytes(zstandard.compress(b"\0" * (64 * BLOCK_BYTES)))
    for query in (Query(), Query(text="nowhere")):
        with pytest.raises(AuditFailed, match="larger than any segment"):
            list(search(str(folder), query))


def test_index_that_is_a_pipe_is_not_waited_for(folder):
    for path in folder.glob("*.index"):
        path.unlink()
        os.mkfifo(path)
    query = Query(principal="ann")
    assert sorted(seqs(search(str(folder), query))) == naive(folder, query)


@pytest.mark.parametrize("more", [Query(), Query(verdict=Verdict.DENY), Query(text="number")])
def test_a_search_goes_on_before_the_record_where_another_one_ended(built, more):
    everything = [found.record["seq"] for found in search(str(built), more)]
    for before in (1, 2, everything[-1], everything[len(everything) // 2], everything[0], 10_000):
        found = [each.record["seq"] for each in search(str(built), replace(more, before=before))]
        assert found == [seq for seq in everything if seq < before]
