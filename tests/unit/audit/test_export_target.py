"""What an export may be asked for; everything else is refused before anything is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.audit.export.delivery import ExportFailed, export_records, open_bookmark
from cellwall.audit.export.encodings import RecordFields
from cellwall.audit.export.target import ExportAddress, ExportTarget, Transport, parse_headers
from cellwall.audit.search import FoundRecord
from cellwall.audit.segments import BadSegment, Segment
from cellwall.core.errors import AuditFailed, BadInput, CellwallError


@pytest.mark.parametrize(
    ("form", "destination", "address"),
    [
        ("jsonl", "-", ExportAddress(Transport.STDOUT)),
        ("csv", "out/table-12:30.csv", ExportAddress(Transport.FILE, path="out/table-12:30.csv")),
        ("otlp", "file:///tmp/x", ExportAddress(Transport.FILE, path="/tmp/x")),
        ("syslog", "udp://log.example", ExportAddress(Transport.UDP, "log.example", 514)),
        ("syslog", "tcp://10.0.0.1:1514/", ExportAddress(Transport.TCP, "10.0.0.1", 1514)),
        ("syslog", "tls://[2001:db8::1]", ExportAddress(Transport.TLS, "2001:db8::1", 6514)),
        ("syslog", "unix:///dev/log", ExportAddress(Transport.UNIX, path="/dev/log")),
        ("otlp", "http://localhost", ExportAddress(Transport.HTTP, "localhost", 4318, "/v1/logs")),
        (
            "otlp",
            "https://o.example/x?a=b",
            ExportAddress(Transport.HTTPS, "o.example", 443, "/x?a=b"),
        ),
    ],
)
def test_destinations(form: str, destination: str, address: ExportAddress) -> None:
    assert ExportTarget.parse(form, destination).address == address


@pytest.mark.parametrize(
    ("form", "destination"),
    [
        *[
            ("jsonl", bad)
            for bad in ("", "host:514", "tcp://h:1", "https://h/", "a\0b", "x" * 5000)
        ],
        *[
            ("syslog", bad)
            for bad in ("-", "/dev/log", "tcp://", "tcp://:514", "tcp://h:0", "gopher://h")
        ],
        *[
            ("syslog", bad)
            for bad in ("tcp://h:70000", "tcp://h:1/path", "tcp://h:1?q", "tcp://h:x")
        ],
        *[
            ("syslog", bad)
            for bad in ("unix://", "unix:///", "unix://host/p", "unix:///" + "x" * 108)
        ],
        *[
            ("syslog", bad)
            for bad in ("tcp://a..b:1", "tcp://a b:1", "tcp://[zz]:1", "tcp://" + "a" * 64)
        ],
        *[("otlp", bad) for bad in ("http://h/a#b", "http://h/a b", "http://h/\u00e9", "ftp://h/")],
        ("xml", "-"),
        ("", "-"),
    ],
)
def test_what_is_no_destination_for_the_form_is_refused(form: str, destination: str) -> None:
    with pytest.raises(BadInput) as caught:
        ExportTarget.parse(form, destination)
    assert caught.value.code == "CW-EXPORT-TARGET"
    assert caught.value.hint


def test_a_password_in_a_destination_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadInput) as caught:
        ExportTarget.parse("otlp", "https://ann:hunter2@o.example/")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "destination", "options"),
    [
        ("jsonl", "-", {"append": True}),
        ("jsonl", "-", {"hostname": "box"}),
        ("csv", "x", {"headers": {"a": "b"}}),
        ("csv", "x", {"facility": "user"}),
        ("csv", "x", {"batch_records": 5}),
        ("otlp", "http://h", {"ca_file": "x"}),
        ("otlp", "x", {"headers": {"a": "b"}}),
        ("syslog", "tcp://h", {"dangerously_accept_any_certificate": True}),
        ("syslog", "udp://h", {"framing": "newline"}),
        ("syslog", "tls://h", {"client_key_file": "x"}),
        ("syslog", "tcp://h", {"framing": "morse"}),
        ("syslog", "tcp://h", {"facility": "24"}),
        ("syslog", "tcp://h", {"facility": "-1"}),
        ("syslog", "tcp://h", {"facility": "nothing"}),
        ("syslog", "tcp://h", {"max_message_bytes": 0}),
        ("syslog", "tcp://h", {"max_message_bytes": 1023}),
        ("syslog", "tcp://h", {"timeout_s": 0}),
        ("syslog", "tcp://h", {"timeout_s": float("nan")}),
        ("syslog", "tcp://h", {"timeout_s": float("inf")}),
        ("otlp", "-", {"batch_records": 0}),
        ("otlp", "-", {"batch_records": 10_001}),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_and_not_ignored(
    form: str, destination: str, options: dict[str, object]
) -> None:
    with pytest.raises(BadInput) as caught:
        ExportTarget.parse(form, destination, **options)
    assert caught.value.code == "CW-EXPORT-TARGET"


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "c"},
        {"": "c"},
        {"a": ""},
        {"a": "b\r\nHost: evil"},
        {"a\r\nb": "c"},
        {"a": "\u00e9"},
        {"a": "x" * 9000},
        {"Host": "evil"},
        {"content-LENGTH": "5"},
        {"Transfer-Encoding": "chunked"},
        {f"h{number}": "x" for number in range(40)},
    ],
)
def test_headers_cannot_break_out_of_their_line(headers: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        ExportTarget.parse("otlp", "https://o.example", headers=headers)


@pytest.mark.requirement("AUD-4")
def test_a_token_is_not_sent_in_the_clear_and_not_shown() -> None:
    token = {"Authorization": "Bearer hunter2"}
    with pytest.raises(BadInput) as caught:
        ExportTarget.parse("otlp", "http://o.example", headers=token)
    target = ExportTarget.parse("otlp", "https://o.example", headers=token)
    assert "hunter2" not in f"{caught.value} {target!r} {target}"
    for near in ("http://localhost", "http://127.0.0.1:4318", "http://[::1]"):
        assert ExportTarget.parse("otlp", near, headers=token).headers == tuple(token.items())
    tenant = {"X-Scope-OrgID": "team"}
    assert ExportTarget.parse("otlp", "http://o.example", headers=tenant).headers


def test_headers_from_a_file() -> None:
    text = "# of the collector\n\nAuthorization: Bearer a:b\nX-Scope-OrgID:  team \n"
    assert parse_headers(text) == {"Authorization": "Bearer a:b", "X-Scope-OrgID": "team"}
    for bad in ("no colon", "a: b\na: c"):
        with pytest.raises(BadInput):
            parse_headers(bad)


def test_the_facility_is_log_audit_unless_another_is_named() -> None:
    facilities = [
        ExportTarget.parse("syslog", "tcp://h", facility=text).facility
        for text in (None, "audit", "local0", "authpriv", "7")
    ]
    assert facilities == [13, 13, 16, 10, 7]


def test_a_forged_kind_or_time_reaches_no_head() -> None:
    good = dict.fromkeys(("action_id", "session_id", "principal", "interface", "id"), "x")
    good |= {"seq": 1, "body": {}}
    for kind, time in (
        ("in tent", "2026-01-01T00:00:00.000000Z"),
        ("intent", "2026-01-01 00:00:00"),
        ("intent", "2026-13-01T00:00:00.000000Z"),
        ("intent", "yesterday"),
    ):
        record = {**good, "kind": kind, "time": time}
        with pytest.raises(AuditFailed):
            RecordFields.of(FoundRecord(record, b"{}", Segment("", 1, frozenset())))


def test_a_log_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    problems = ((OSError(5, "x", str(tmp_path)), "FAILED"), (BadSegment("odd"), "ALTERED"))
    for number, (problem, code) in enumerate(problems):

        def breaks(problem: Exception = problem) -> Iterator[FoundRecord]:
            yield from ()
            raise problem

        with pytest.raises(ExportFailed) as caught:
            export_records(breaks(), ExportTarget.parse("jsonl", str(tmp_path / f"to{number}")))
        assert caught.value.code == f"CW-AUDIT-{code}"
        assert str(tmp_path) not in f"{caught.value} {caught.value.detail}"


# --- bookmarks


def test_a_bookmark_remembers_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    with open_bookmark(str(path)) as bookmark:
        assert bookmark.seq == 0
        bookmark.move(7)
        bookmark.move(123_456)
        with pytest.raises(BadInput, match="another export"), open_bookmark(str(path)):
            pass
    with open_bookmark(str(path)) as bookmark:
        assert bookmark.seq == 123_456
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_bookmark_that_cannot_be_moved_tells_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "full", str(tmp_path))

    with open_bookmark(str(tmp_path / "mark")) as bookmark:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(CellwallError, match="after record 9") as caught:
            bookmark.move(9)
    assert caught.value.code == "CW-EXPORT-BOOKMARK"


def test_what_is_no_bookmark_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary")
    (tmp_path / "long").write_text("1" * 64)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("notes", "long", "link", "pipe", "no/folder", ""):
        with pytest.raises(BadInput) as caught, open_bookmark(str(tmp_path / name)):
            pass
        assert str(tmp_path) not in str(caught.value)
    assert (tmp_path / "notes").read_text() == "dear diary"
    assert not (tmp_path / "elsewhere").exists()
