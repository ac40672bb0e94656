"""The report of an incident: complete, bounded, and harmless to look at (OBS-3)."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.admin import incident_report
from cellwall.admin.incident_report import gather_sessions, report_html, report_text

pytestmark = pytest.mark.requirement("OBS-3")
_HOSTILE = "<script>x</script>\x1b[31m\n\u202e'\""


def record(kind: str, body: dict[str, Any], **changes: str) -> dict[str, Any]:
    known = {"session_id": "sbx_1", "action_id": "act_1", "principal": "ann", "interface": "http"}
    return {"kind": kind, "time": "2026-01-01T00:00:00Z", **known, **changes, "body": body}


RECORDS = [
    record("intent", {"command": ["curl", "-T", "x", "https://a.example"], "secrets": ["KEY"]}),
    record("vault", {"change": "lease", "status": "ok", "names": ["KEY", "OTHER"]}),
    record("vault", {"change": "lease", "status": "refused", "names": ["NOT-GIVEN"]}),
    record("connection", {"event": "opened", "host": "a.example", "port": 443}),
    record("connection", {"event": "secret-used", "secret": "KEY", "host": "a.example", "port": 443}),
    record(
        "connection",
        {"event": "closed", "host": "a.example", "port": 443, "bytes_up": 7, "bytes_down": 9},
    ),
    record("connection", {"event": "refused", "code": "CW-EGRESS", "host": "b.example", "port": 1}),
    record("connection", {"event": "leak-refused", "secret": "OTHER", "host": "c.example", "port": 2}),
    record("connection", {"event": "package-served", "package": "pkg:pypi/x@1", "sha256": "ab"}),
    record("intent", {"file": "read", "path": "out.txt"}, action_id="act_2"),
    record("apply", {"step": "outcome", "status": "ok", "applied": ["a"]}),
    record("denial", {"command": ["rm", "-rf", "/"], "verdict": "deny"}, session_id=""),
    record("outcome", {"sealed": "erased"}, action_id="act_3"),
]  # fmt: skip


def make_report(records: list[dict[str, Any]]) -> dict[str, Any]:
    sessions = [each.to_json() for each in gather_sessions(records)]
    return {"created": "now", "reason": _HOSTILE, "summary": {"n": 1}, "sessions": sessions}


def test_the_report_says_what_was_reached_given_and_left() -> None:
    first, second = make_report(RECORDS)["sessions"]
    assert (first["id"], second["id"]) == ("sbx_1", "act_1")
    place = {"place": "a.example:443", "connections": 1, "bytes_up": 7, "bytes_down": 9}
    assert first["reached"] == [place]
    assert first["refused"] == {"b.example:1 CW-EGRESS": 1}
    assert first["leaks_refused"] == {"OTHER to c.example:2": 1}
    assert first["secrets_leased"] == ["KEY", "OTHER"]
    assert first["secrets_used"] == {"KEY at a.example:443": 1}
    assert first["packages"] == {"pkg:pypi/x@1": "ab"}
    assert [each["how"] for each in first["files_left"]] == [
        "read by the interface",
        "applied to the host",
    ]
    assert first["operations"][0]["operation"] == "curl -T x https://a.example"
    assert (first["unreadable"], first["denied"], second["denied"]) == (1, 0, 1)
    assert second["operations"][0]["verdict"] == "deny"


def test_names_that_code_chose_cannot_act() -> None:
    hostile = [
        record("intent", {"command": [_HOSTILE]}, session_id=_HOSTILE, principal=_HOSTILE),
        record("intent", {"command": {"not": "a list"}, "secrets": "no list", "tool": 7}),
        record("connection", {"event": "closed", "host": [], "bytes_up": "many"}),
        record("vault", {"change": "lease", "status": "ok", "names": [_HOSTILE, 3, None]}),
    ]
    report = make_report(hostile)
    text, page = report_text(report), report_html(report)
    assert text.isascii()
    assert not any(mark in text for mark in ("\x1b", "\u202e"))
    assert "<script" not in page
    assert all(mark not in page for mark in ("\x1b", "\u202e"))
    assert "default-src 'none'" in page


def test_a_flood_of_sessions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_report, "_MAX_SESSIONS", 3)
    flood = [record("intent", {"secrets": [f"S{n}"]}, session_id=f"sbx_{n}") for n in range(6)]
    found = {each.id: each.records for each in gather_sessions(flood)}
    assert found == {"sbx_0": 1, "sbx_1": 1, "sbx_2": 1, "others": 3}


def test_a_flood_of_records_makes_no_endless_report() -> None:
    flood = [
        record("connection", {"event": "opened", "host": f"h{number}.example", "port": 1})
        for number in range(3000)
    ]
    flood += [record("intent", {"command": ["x" * 100_000]}) for _ in range(600)]
    report = make_report(flood)
    (session,) = report["sessions"]
    assert (len(session["reached"]), len(session["operations"])) == (500, 500)
    assert len(report_text(report)) < 500_000
