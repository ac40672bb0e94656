"""The replies to a client whose request was refused."""

from __future__ import annotations

import json
from typing import Any

import h11
import pytest

from cellwall.core.errors import AuditFailed, CellwallError, EgressRefused, VaultError
from cellwall.egress.protocols import socks
from cellwall.egress.proxy.client_connection import http_refusal, socks_refusal


def told(
    error: CellwallError, *, host: str = "api.example.com", port: int = 443
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body, as a strict client reads them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(http_refusal(error, host=host, port=port))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data == (b"", False)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return response.status_code, headers, json.loads(body)


@pytest.mark.requirement("NET-2")
def test_a_refusal_says_what_and_what_to_do() -> None:
    error = EgressRefused("the host is not allowed", hint="Allow it.", code="CW-EGRESS", detail="x")
    status, headers, body = told(error)
    length = headers.pop("content-length")
    assert int(length) > 0
    assert (status, headers, body) == (
        403,
        {
            "x-cellwall-refused": "CW-EGRESS",
            "content-type": "application/json",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "connection": "close",
        },
        {
            "error": {
                "code": "CW-EGRESS",
                "message": "the host is not allowed",
                "hint": "Allow it.",
            }
        },
    )


@pytest.mark.parametrize(
    ("code", "status", "answer"),
    [
        ("CW-EGRESS", 403, socks.NOT_ALLOWED),
        ("CW-ADDRESS", 403, socks.NOT_ALLOWED),
        ("CW-SOMETHING-NEW", 403, socks.NOT_ALLOWED),
        ("CW-BAD-REQUEST", 400, socks.NOT_ALLOWED),
        ("CW-BAD-HOST", 400, socks.NOT_ALLOWED),
        ("CW-NET-LIMIT", 429, socks.CONNECTION_REFUSED),
        ("CW-NO-ADDRESS", 502, socks.HOST_UNREACHABLE),
        ("CW-UNREACHABLE", 502, socks.HOST_UNREACHABLE),
        ("CW-BAD-RESPONSE", 502, socks.NOT_ALLOWED),
        ("CW-UPSTREAM-TLS", 502, socks.NOT_ALLOWED),
        ("CW-LATE", 504, socks.HOST_UNREACHABLE),
        ("CW-SOCKS", 403, socks.FAILED),
        ("CW-SOCKS-COMMAND", 403, socks.COMMAND_NOT_SUPPORTED),
        ("CW-SOCKS-ADDRESS", 403, socks.ADDRESS_TYPE_NOT_SUPPORTED),
    ],
)
def test_each_code_has_its_status(code: str, status: int, answer: int) -> None:
    error = EgressRefused("no", code=code)
    assert (told(error)[0], socks_refusal(error, "", 0)) == (status, socks.reply(answer))


@pytest.mark.parametrize("error", [AuditFailed("no"), VaultError("no"), CellwallError("no")])
def test_any_error_of_ours_is_a_refusal(error: CellwallError) -> None:
    assert (told(error)[0], socks_refusal(error, "", 0)) == (403, socks.reply(socks.NOT_ALLOWED))


def test_without_a_hint_the_rule_to_write_is_named() -> None:
    body = told(EgressRefused("no"), host="api.example.com", port=8443)[2]
    assert "`--allow-domain api.example.com:8443`" in body["error"]["hint"]


@pytest.mark.parametrize("host", ["a b", "x\r\nSet-Cookie: a", "`rm`", "", "ä.example", "A" * 300])
def test_a_host_that_no_rule_could_name_is_not_repeated(host: str) -> None:
    assert told(EgressRefused("no"), host=host)[2]["error"]["hint"] == ""


@pytest.mark.requirement("ERR-1")
def test_the_story_for_the_record_does_not_leave() -> None:
    sent = http_refusal(EgressRefused("no", detail="/etc/shadow"), host="a.example", port=1)
    assert b"shadow" not in sent


@pytest.mark.parametrize("code", ["CW-A\r\nX-Evil: 1", "x", "", "CW-" + "A" * 500])
def test_a_code_cannot_become_a_header(code: str) -> None:
    error = EgressRefused("no")
    error.code = code
    assert told(error)[1]["x-cellwall-refused"] == "CW-ERROR"


def test_any_text_can_be_told() -> None:
    message = "a\r\n\0\ud800ä" + "x" * 5000
    body = told(EgressRefused(message, hint="\ud800"))[2]
    assert body["error"]["message"] == message[:2000]
    assert body["error"]["hint"] == "\ud800"
