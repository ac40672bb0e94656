"""The record as files: JSON Lines to the byte, tables that run nothing, and numbers to go on from."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import stat
from pathlib import Path

import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from cellwall.audit.export import sinks as files_module
from cellwall.audit.export.delivery import Exported, ExportFailed, export_records, records_after
from cellwall.audit.export.encodings import COLUMNS
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.log import AuditLog
from cellwall.audit.records import parse_record
from cellwall.audit.search import Query, search
from cellwall.core.errors import AuditFailed, BadInput
from cellwall.core.outcomes import Event, EventKind
from unit.audit.export_receivers import PRINCIPALS, write_hostile


@pytest.fixture
def log(tmp_path: Path) -> str:
    directory = str(tmp_path / "log")
    write_hostile(directory)
    return directory


def lines_of(directory: str) -> list[bytes]:
    return b"".join(
        path.read_bytes() for path in sorted(Path(directory).glob("*.jsonl"))
    ).splitlines()


def write_many(directory: str, count: int) -> None:
    with AuditLog.open(directory) as log:
        for number in range(count):
            log.write(Event(EventKind.INTENT, "act_1", "ann", "cli", {"number": number}))


@pytest.mark.requirement("AUD-4")
def test_json_lines_are_the_lines_of_the_log(log: str, tmp_path: Path) -> None:
    to = tmp_path / "export.jsonl"
    exported = export_records(records_after(log), ExportTarget.parse("jsonl", str(to)))
    lines = lines_of(log)
    assert to.read_bytes() == b"".join(line + b"\n" for line in lines)
    assert exported == Exported(last_seq=len(lines), first_seq=1, sent=len(lines))
    assert [parse_record(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert stat.S_IMODE(to.stat().st_mode) == 0o600


def test_sealed_and_packed_segments_are_exported_as_well(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    with AuditLog.open(directory) as log:
        for number in range(6):
            log.write(Event(EventKind.INTENT, "act_1", "ann", "cli", {"number": number}))
            log.seal()
    to = tmp_path / "export.jsonl"
    exported = export_records(records_after(directory), ExportTarget.parse("jsonl", str(to)))
    numbers = [parse_record(line)["seq"] for line in to.read_bytes().splitlines()]
    assert numbers == list(range(1, exported.last_seq + 1))
    assert exported.sent > 12


@pytest.mark.requirement("AUD-4")
def test_a_table_has_every_field_and_runs_nothing(log: str, tmp_path: Path) -> None:
    to = tmp_path / "export.csv"
    export_records(records_after(log), ExportTarget.parse("csv", str(to)))
    text = to.read_bytes().decode("utf-8")
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert text.count("\r\n") == text.count("\n") == len(rows)
    assert tuple(rows[0]) == COLUMNS
    assert ",".join(COLUMNS) == (
        "seq,time,kind,id,action_id,session_id,principal,interface,verdict,status,body"
    )
    records = [parse_record(line) for line in lines_of(log)]
    for row, record in zip(rows[1:], records, strict=True):
        cells = dict(zip(COLUMNS, row, strict=True))
        assert json.loads(cells["body"]) == record["body"]
        assert [cells["seq"], cells["id"]] == [str(record["seq"]), record["id"]]
        assert not any(cell.startswith(tuple("=+-@\t\r\uff1d")) for cell in row)
        assert all(character.isprintable() for character in "".join(row))
    principals = [row[COLUMNS.index("principal")] for row in rows[2 : 2 + len(PRINCIPALS)]]
    assert principals[:5] == ["ann", "'=cmd|' /C calc'!A0", "'+1", "'-1", "'@SUM(A1)"]
    assert "line\\u000abreak" in principals
    assert {row[COLUMNS.index("verdict")] for row in rows[1:]} == {"", "ask"}
    assert {row[COLUMNS.index("status")] for row in rows[1:]} == {"", "denied", "error", "ok"}


@pytest.mark.requirement("AUD-4")
def test_otlp_in_a_file_is_one_request_a_line(log: str, tmp_path: Path) -> None:
    to = tmp_path / "export.otlp"
    exported = export_records(
        records_after(log), ExportTarget.parse("otlp", str(to), batch_records=4)
    )
    requests = [
        json_format.Parse(line, ExportLogsServiceRequest()) for line in to.read_bytes().splitlines()
    ]
    bodies = [
        record.body.string_value.encode()
        for request in requests
        for record in request.resource_logs[0].scope_logs[0].log_records
    ]
    assert bodies == lines_of(log)
    assert len(requests) == -(-exported.sent // 4)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_next_export_goes_on_where_the_last_one_ended(tmp_path: Path, form: str) -> None:
    directory, to = str(tmp_path / "log"), tmp_path / "export"
    write_many(directory, 5)
    target = ExportTarget.parse(form, str(to), append=True)
    first = export_records(records_after(directory), target)
    write_many(directory, 3)
    second = export_records(
        records_after(directory, after_seq=first.last_seq), target, after_seq=first.last_seq
    )
    third = export_records(
        records_after(directory, after_seq=second.last_seq), target, after_seq=second.last_seq
    )
    whole = tmp_path / "whole"
    export_records(records_after(directory), ExportTarget.parse(form, str(whole)))
    assert to.read_bytes() == whole.read_bytes()
    assert second.first_seq == first.last_seq + 1
    assert third == Exported(last_seq=second.last_seq)


def test_what_was_sent_before_is_left_out_of_any_iterator(log: str, tmp_path: Path) -> None:
    to = tmp_path / "export"
    exported = export_records(records_after(log), ExportTarget.parse("jsonl", str(to)), after_seq=4)
    assert (exported.first_seq, exported.sent) == (5, len(lines_of(log)) - 4)


def test_segments_before_the_number_are_not_read(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    write_many(directory, 3)
    with AuditLog.open(directory) as log:
        log.seal()
    write_many(directory, 3)
    everything = list(records_after(directory))
    for path in Path(directory).glob("0000000000000001.jsonl*"):
        path.write_bytes(b"rubbish")
    last_of_first = max(f.record["seq"] for f in everything if f.segment.first == 1)
    after = list(records_after(directory, after_seq=last_of_first))
    assert [found.line for found in after] == [f.line for f in everything if f.segment.first > 1]
    with pytest.raises(AuditFailed) as caught:
        list(records_after(directory, after_seq=last_of_first - 1))
    assert caught.value.code == "CW-AUDIT-ALTERED"


def test_a_segment_that_is_packed_meanwhile_is_found_under_its_new_name(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    write_many(directory, 3)
    with AuditLog.open(directory) as log:
        log.seal()
    write_many(directory, 3)
    everything = [found.line for found in records_after(directory)]
    records = records_after(directory)
    got = [next(records).line]
    last = max(Path(directory).glob("*.jsonl"))
    Path(f"{last}.zst").write_bytes(zstandard.compress(last.read_bytes()))
    last.unlink()
    got += [found.line for found in records]
    assert got == everything


def test_records_after_filters_as_a_search_does(log: str) -> None:
    query = Query(kind=EventKind.DENIAL)
    assert [f.line for f in records_after(log, query)] == [f.line for f in search(log, query)]


def test_a_number_of_another_log_is_refused(log: str) -> None:
    with pytest.raises(BadInput) as caught:
        list(records_after(log, after_seq=10_000))
    assert caught.value.code == "CW-EXPORT-AHEAD"
    last = len(lines_of(log))
    assert list(records_after(log, after_seq=last)) == []


def test_no_log_yet_is_an_empty_export(tmp_path: Path) -> None:
    to = tmp_path / "export.csv"
    target = ExportTarget.parse("csv", str(to))
    assert export_records(records_after(str(tmp_path / "none")), target) == Exported(last_seq=0)
    assert to.read_bytes() == (",".join(COLUMNS) + "\r\n").encode()


def test_a_record_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    write_many(directory, 3)
    whole = lines_of(directory)
    with open(max(Path(directory).glob("*.jsonl")), "ab") as file:
        file.write(whole[-1][:50])
    assert [found.line for found in records_after(directory)] == whole


@pytest.mark.requirement("AUD-4")
def test_an_altered_record_ends_the_export_after_what_is_sound(tmp_path: Path) -> None:
    directory, to = str(tmp_path / "log"), tmp_path / "export"
    write_many(directory, 5)
    segment = next(Path(directory).glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'{"number":3}', b'{"number": 3}'))
    with pytest.raises(ExportFailed) as caught:
        export_records(records_after(directory), ExportTarget.parse("jsonl", str(to)))
    assert caught.value.code == "CW-AUDIT-ALTERED"
    sent = to.read_bytes().splitlines()
    assert caught.value.exported.last_seq == parse_record(sent[-1])["seq"] == len(sent) > 0
    assert b'"number": 3' not in to.read_bytes()


def test_the_newest_first_is_refused(log: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        export_records(search(log, Query()), ExportTarget.parse("jsonl", str(tmp_path / "x")))


def test_an_existing_file_is_not_written_over(log: str, tmp_path: Path) -> None:
    to = tmp_path / "export"
    to.write_text("mine\n")
    with pytest.raises(BadInput, match="already"):
        export_records(records_after(log), ExportTarget.parse("jsonl", str(to)))
    assert to.read_text() == "mine\n"


def test_a_link_a_pipe_and_half_a_line_are_not_appended_to(log: str, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "torn").write_text('{"half":')
    for name in ("link", "pipe", "torn"):
        target = ExportTarget.parse("jsonl", str(tmp_path / name), append=True)
        with pytest.raises((BadInput, ExportFailed)) as caught:
            export_records(records_after(log), target)
        assert str(tmp_path) not in f"{caught.value} {caught.value.detail}"
    assert (tmp_path / "real").read_text() == ""
    assert (tmp_path / "torn").read_text() == '{"half":'


def test_two_exports_do_not_mix_in_one_file(log: str, tmp_path: Path) -> None:
    target = ExportTarget.parse("jsonl", str(tmp_path / "export"), append=True)
    first = files_module.FileSink(target)
    try:
        with pytest.raises(BadInput, match="another export"):
            export_records(records_after(log), target)
    finally:
        first.close()


def test_a_full_disk_leaves_whole_lines_and_the_number_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, to = str(tmp_path / "log"), tmp_path / "export"
    write_many(directory, 40)
    monkeypatch.setattr(files_module.FileSink, "max_bytes", 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(ExportFailed) as caught:
            export_records(records_after(directory), ExportTarget.parse("jsonl", str(to)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    done = caught.value.exported
    assert caught.value.code == "CW-EXPORT-FILE"
    assert f"--after {done.last_seq}" in caught.value.hint
    lines = to.read_bytes().splitlines(keepends=True)
    assert [parse_record(line.rstrip(b"\n"))["seq"] for line in lines] == list(
        range(1, done.last_seq + 1)
    )
    export_records(
        records_after(directory, after_seq=done.last_seq),
        ExportTarget.parse("jsonl", str(to), append=True),
        after_seq=done.last_seq,
    )
    assert to.read_bytes().splitlines() == lines_of(directory)


def test_standard_output_and_progress(log: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    heard: list[int] = []
    exported = export_records(
        records_after(log), ExportTarget.parse("jsonl", "-"), progress=heard.append
    )
    assert capfdbinary.readouterr().out.splitlines() == lines_of(log)
    assert heard == [exported.sent]


def test_a_reader_that_has_gone_is_a_broken_pipe(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(files_module, "_STDOUT", writing)
    try:
        with pytest.raises(BrokenPipeError):
            export_records(records_after(log), ExportTarget.parse("jsonl", "-"))
    finally:
        os.close(writing)


@pytest.mark.parametrize("name", ["0000000000000001.jsonl", "0000000000000001.jsonl.zst"])
def test_a_segment_that_is_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(AuditFailed) as caught:
        list(records_after(str(tmp_path)))
    assert caught.value.code == "CW-AUDIT-ALTERED"
