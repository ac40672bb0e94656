"""Calendars of users as tools over MCP: a real CalDAV server, two users, the SDK's client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from interfaces.mcp_service import BOSS, McpService, serving
from interfaces.test_mcp_gateway import names
from outside import internet
from radicale_server import HOST, CalendarServer, calendar_server

pytestmark = [
    pytest.mark.only_on("warm", reason="the service makes its own cells"),
    pytest.mark.requirement("RBAC-3"),
]
WORDS = {"ann": "anns-word-for-radicale", "bob": "bobs-word-for-radicale"}
SPAN = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
TOOLS = {"list_calendar_events", "create_calendar_event"}
RULES = (
    '[permissions]\nallow = ["list_events", "create_event", "WebFetch(domain:*.test.example)"]\n'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CalendarServer, str, str]]:
    with internet(tmp_path_factory.mktemp("outside")) as world, calendar_server(world, WORDS) as it:
        yield it, Path(world.config()).read_text(), world.ca_file


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, server: tuple[CalendarServer, str, str]
) -> Iterator[McpService]:
    _, config, ca_file = server
    home = tmp_path_factory.mktemp("mcp-calendars")
    (home / "policy.toml").write_text(RULES)
    config += f'[policy]\nfiles = ["{home / "policy.toml"}"]\n[approvals]\ntimeout_s = 1\n'
    config += f'[vault]\nkey = "file"\nkey_file = "{home}/vault.key"\n'
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", ca_file)
        with serving(home, config) as found:
            vault = VaultAdmin(str(home), found.app.settings, audit=found.app.audit)
            vault.init(choice=VaultKeyChoice(), principal=BOSS)
            yield found


def connect(service: McpService, server: CalendarServer, name: str, account: str) -> str:
    """Store the word of a user and connect a calendar; returns the id of the account."""
    origin = service.url.removesuffix("/mcp")
    http = service.http(service.token(name)[0])
    grant = {"host": HOST, "ports": [server.port], "place": "basic", "name": "password"}
    secret = {"value": WORDS[name], "grants": [grant]}
    assert http.put(f"{origin}/v1/secrets/CAL", json=secret).status_code == 200
    body = {"kind": "caldav", "url": server.url(name), "username": name, "secret": "CAL"}
    made = http.put(f"{origin}/v1/connections/{account}", json=body)
    assert made.status_code in {200, 201}, made.text
    return str(made.json()["id"])


def test_a_calendar_is_its_owners_tool_alone(
    service: McpService, server: tuple[CalendarServer, str, str]
) -> None:
    calendars = server[0]
    with service.connected(service.token("ann")[0]) as ann:
        assert not TOOLS & names(ann)
    foreign = connect(service, calendars, "ann", "private")
    connect(service, calendars, "bob", "work")
    event = {"start": "2026-01-09T11:00:00+01:00", "end": "2026-01-09T12:00:00+01:00"}
    event |= {"summary": "Review of the plan", "location": "Room 5"}
    with (
        service.connected(service.token("ann")[0]) as ann,
        service.connected(service.token("bob")[0]) as bob,
    ):
        assert names(ann) >= TOOLS
        made = ann.told("create_calendar_event", account="private", **event)
        assert made["status"] == "ok", made
        shown = ann.told("list_calendar_events", account="private", **SPAN)
        assert "Review of the plan" in shown["output"]
        assert WORDS["ann"] not in str(shown)
        assert "Review" not in str(bob.told("list_calendar_events", account="work", **SPAN))
        # One of another user answers like one that does not exist, by name and by id.
        answers = []
        for account in ("private", foreign, "nothing", "con_" + "0" * 26):
            for tool, more in (("list_calendar_events", SPAN), ("create_calendar_event", event)):
                refused = bob.told(tool, account=account, **more)
                shown = re.sub(r"(begin|end) [0-9a-f]{16}", "", refused["output"])  # random marks
                answers.append((refused["status"], refused["error"], shown))
        assert len({repr(each) for each in answers}) == 1, answers
        assert answers[0][1]["code"] == "CW-NOT-FOUND"
    assert len(calendars.files("ann")) == 1
    assert calendars.files("bob") == []


def test_wrong_arguments_and_a_missing_right_are_refused(
    service: McpService, server: tuple[CalendarServer, str, str]
) -> None:
    connect(service, server[0], "ann", "office")
    with service.connected(service.token("ann")[0]) as ann:
        for wrong in ({}, {"account": 5}, {"account": "office", "start": "soon", "end": "later"}):
            assert ann.call("list_calendar_events", **wrong).is_error
    scoped, _ = service.token("ann", scopes=("files:read",))
    with service.connected(scoped) as agent:
        refused = agent.told("list_calendar_events", account="office", **SPAN)
        assert refused["error"]["code"] == "CW-ROLE"
