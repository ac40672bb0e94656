"""A request reaches the host that has what it names (SRV-6)."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from cellwall.admin.fleet import AnswerBroken
from cellwall.core.ids import new_id
from cellwall.interfaces.http.fleet_answers import MAX_ANSWER_BYTES, BufferedResponse, merged
from cellwall.interfaces.http.fleet_routing import (
    Target,
    labels_of,
    scraped_host,
    target_of,
    with_host,
    without_host,
)

pytestmark = pytest.mark.requirement("SRV-6")
SESSION, QUESTION, SNAPSHOT = new_id("sbx"), new_id("ask"), new_id("snp")
HOST = new_id("svc")


@pytest.mark.parametrize(
    ("method", "path", "headers", "target"),
    [
        ("GET", f"/v1/sessions/{SESSION}", {}, Target("session", SESSION)),
        ("PUT", f"/v1/sessions/{SESSION}/files/a/b.txt", {}, Target("session", SESSION)),
        ("GET", f"/v1/sessions/{SESSION}/terminal", {}, Target("session", SESSION)),
        ("POST", f"/e2b/sandboxes/{SESSION}/pause", {}, Target("session", SESSION)),
        ("GET", f"/e2b/v2/sandboxes/{SESSION}", {}, Target("session", SESSION)),
        ("POST", "/e2b/execute", {b"e2b-sandbox-id": SESSION.encode()}, Target("session", SESSION)),
        ("GET", "/x", {b"host": f"8000-{SESSION}.localhost:8750".encode()}, Target("session", SESSION)),
        ("POST", f"/v1/approvals/{QUESTION}", {}, Target("approval", QUESTION)),
        ("GET", f"/ui/sessions/{SESSION}", {}, Target("session", SESSION)),
        ("POST", f"/ui/sessions/{SESSION}/end", {}, Target("session", SESSION)),
        ("GET", f"/ui/approvals/{QUESTION}", {}, Target("approval", QUESTION)),
        ("DELETE", f"/v1/snapshots/{SNAPSHOT}", {}, Target("snapshot", SNAPSHOT)),
        ("POST", "/v1/sessions", {}, Target("new")),
        ("POST", "/e2b/v2/sandboxes", {}, Target("new")),
        ("GET", "/v1/sessions", {}, Target("all")),
        ("GET", "/v1/approvals", {}, Target("all")),
        ("POST", "/mcp", {}, Target("new")),
        ("POST", "/mcp", {b"mcp-session-id": f"abc.{HOST}".encode()}, Target("mcp", HOST)),
        ("POST", "/mcp", {b"mcp-protocol-version": b"2026-07-28"}, Target("mcp")),
        ("GET", "/v1/sessions/not-an-id", {}, Target("any")),
        ("GET", "/v1/audit", {b"cellwall-host": HOST.encode()}, Target("any", HOST)),
        ("PUT", "/v1/secrets/TOKEN", {}, Target("vault")),
        ("GET", "/v1/secrets", {}, Target("vault")),
        ("POST", "/v1/auth/token", {}, Target("any")),
    ],
)  # fmt: skip
def test_the_target_of_a_request_is_what_it_names(method, path, headers, target):
    assert target_of(method, path, headers) == target


def test_labels_are_read_from_a_header_and_what_is_no_label_is_left_out():
    assert labels_of({b"cellwall-labels": b"region=eu, gpu = a100,, x"}) == {
        "region": "eu",
        "gpu": "a100",
    }
    assert labels_of({}) == {}


def test_an_mcp_session_names_its_host_to_clients_alone():
    assert without_host(with_host(b"a.b", HOST)) == b"a.b"


def _answer(body: Any, status: int = 200) -> BufferedResponse:
    return BufferedResponse(
        status, [(b"content-type", b"application/json")], json.dumps(body).encode()
    )


def _merged(*answers: BufferedResponse, query: bytes = b"") -> Any:
    return json.loads(merged({"query_string": query}, answers).body)


def test_lists_of_all_hosts_are_one_list_with_each_session_once():
    rows = [{"id": each, "ends_in": None} for each in "abc"]
    live = {"id": "b", "ends_in": 9.0}
    page = _merged(
        _answer({"sessions": rows[:2], "next": None}),
        _answer({"sessions": [live, rows[2]], "next": None}),
    )
    assert page == {"sessions": [rows[0], live, rows[2]], "next": None}


def test_a_page_of_all_hosts_is_cut_and_names_the_next():
    one = _answer({"sessions": [{"id": "a"}, {"id": "c"}], "next": None})
    two = _answer({"sessions": [{"id": "b"}], "next": None})
    page = _merged(one, two, query=b"limit=2")
    assert ([each["id"] for each in page["sessions"]], page["next"]) == (["a", "b"], "b")


def test_a_refusal_of_one_host_is_the_answer_and_no_list_without_its_sessions():
    refused = _answer({"error": {"code": "CW-SIGN-IN-TOKEN"}}, 401)
    assert merged({}, [_answer({"sessions": [], "next": None}), refused]) is refused


def test_an_endless_answer_of_a_host_does_not_fill_the_front():
    async def go() -> None:
        answer, part = (
            BufferedResponse(),
            {"type": "http.response.body", "body": b"x" * (1024 * 1024)},
        )
        for _ in range(MAX_ANSWER_BYTES // 1024 // 1024):
            await answer.take(part)  # the control
        with pytest.raises(AnswerBroken):
            await answer.take(part)

    anyio.run(go)


def test_an_answer_is_sent_with_the_length_of_its_own_body():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    anyio.run(BufferedResponse(200, [(b"content-length", b"9")], b"[]").send, send)
    assert sent[0]["headers"] == [(b"content-length", b"2")]
    assert sent[1]["body"] == b"[]"


@pytest.mark.parametrize(
    ("path", "query", "found"),
    [
        ("/metrics", f"host={HOST}", HOST),
        ("/metrics", "", ""),
        ("/metrics", f"host={HOST}&host={HOST}", ""),
        ("/metrics", "host=../etc", ""),
        ("/v1/sessions", f"host={HOST}", ""),
    ],
)
def test_a_scraper_names_the_host_in_the_query(path, query, found):
    assert scraped_host(path, query.encode()) == found
