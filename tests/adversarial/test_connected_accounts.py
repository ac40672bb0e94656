"""Connected accounts against a real CalDAV server: an account is its owner's alone (RBAC-3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

import cellwall
from cellwall.admin.connections import ConnectionAdmin
from cellwall.core.connections import CalendarEvent, ConnectedAccount, UseAccount
from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.outcomes import EventKind, Outcome, Status
from cellwall.core.types import Action, Principal
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal
from cellwall.secrets.ownership import stored_name
from conftest import audit_records
from outside import Outside, Seen, internet
from radicale_server import HOST, CalendarServer, calendar_server

pytestmark = pytest.mark.only_on("cold", reason="no cell is involved")

ANN, BOB = "anns-word-for-radicale", "bobs-word-for-radicale"
SPAN = {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
RULES = (
    '[permissions]\nallow = ["list_events", "create_event", "WebFetch(domain:*.test.example)"]\n'
)
Perform = Callable[..., Outcome]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with internet(tmp_path_factory.mktemp("outside")) as world:
        yield world


@pytest.fixture(scope="module")
def server(world: Outside) -> Iterator[CalendarServer]:
    with calendar_server(world, {"ann": ANN, "bob": BOB}) as server:
        yield server


@pytest.fixture
def config(world: Outside, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", world.ca_file)
    (world.folder / "rules.toml").write_text(RULES)
    return world.config(
        f'{QUICK}[approvals]\ntimeout_s = 1\n[policy]\nfiles = ["{world.folder}/rules.toml"]\n'
    )


@pytest.fixture
def vault(config: str, server: CalendarServer) -> Iterator[cellwall.Vault]:
    with cellwall.Vault.open("correct horse battery", create=True, config=config) as vault:
        for name, value in (
            (secret_of("ann"), ANN),
            (secret_of("bob"), BOB),
            ("LOCAL_CAL", BOB),
        ):
            vault.set(name, value)
            vault.grant(name, host=HOST, ports=(server.port,), place="basic", field="password",
                        tools=["account"])  # fmt: skip
        yield vault


@pytest.fixture
def app(config: str, vault: cellwall.Vault) -> Iterator[App]:
    app = wiring.open_app(config=config)
    yield app
    app.close()


@pytest.fixture
def admin(app: App, server: CalendarServer) -> ConnectionAdmin:
    admin = ConnectionAdmin(app.store.home, app.settings)
    connect(admin, server, "work", "ann", "CAL", user="ann")
    connect(admin, server, "work", "bob", "CAL", user="bob")
    return admin


def secret_of(user: str, name: str = "CAL") -> str:
    """The name in the vault of a secret of a user of the service."""
    return stored_name(name, Principal(user, "http"))


def connect(
    admin: ConnectionAdmin, server: CalendarServer, name: str, who: str, secret: str, **more: Any
) -> ConnectedAccount:
    known = {"kind": "caldav", "url": server.url(who), "username": who, "secret": secret}
    return admin.add(name, by=local_principal("cli"), **{**known, **more})


@pytest.fixture
def perform(app: App, admin: ConnectionAdmin) -> Perform:
    def run(operation: UseAccount, who: str = "ann", interface: str = "http", **more: Any) -> Any:
        known = {"principal": Principal(who, interface, "power-user"), "limits": app.limits}
        action = Action(operation=operation, **{**known, **more})
        return anyio.run(app.runtime.perform, action)

    return run


def listing(account: str = "work") -> UseAccount:
    return UseAccount(account, "list_events", **SPAN)


def creating(summary: str, account: str = "work", **more: str) -> UseAccount:
    times = {"start": "2026-01-09T11:00:00+01:00", "end": "2026-01-09T12:00:00+01:00"}
    return UseAccount(account, "create_event", event=CalendarEvent(summary, **{**times, **more}))


@pytest.mark.requirement("RBAC-3", "SEC-5")
def test_owner_lists_and_creates_events_and_nobody_else_does(perform, server):
    made = perform(creating("Review of the plan; part 1, really", location="Room 5"))
    assert made.status is Status.OK, made.error
    found = perform(listing())
    (event,) = found.value["events"]
    assert event == {
        "uid": made.value["uid"],
        "summary": "Review of the plan; part 1, really",
        "start": "2026-01-09T10:00:00Z",
        "end": "2026-01-09T11:00:00Z",
        "location": "Room 5",
    }
    assert perform(listing(), who="bob").value == {"events": []}
    assert len(server.files("ann")) == 1
    assert server.files("bob") == []


@pytest.mark.requirement("RBAC-3")
def test_account_of_another_user_answers_like_one_that_does_not_exist(perform, admin, server):
    own = connect(admin, server, "private", "ann", "CAL", user="ann")
    assert perform(listing("private")).status is Status.OK  # the control
    attempts = {
        "its name": ("private", "bob", "http"),
        "its id": (own.id, "bob", "http"),
        "an id that does not exist": ("con_00000000000000000000000000", "bob", "http"),
        "a name that does not exist": ("nothing", "bob", "http"),
        "the owner's name in it": ("user:ann/private", "bob", "http"),
        "the same name on this machine": ("private", "ann", "cli"),
        "over an agent's protocol": ("private", "ann", "mcp"),
        "another case": ("PRIVATE", "ann", "http"),
    }
    before = len(audit_records(kind=EventKind.CONNECTION))
    answers = {}
    for what, (name, who, interface) in attempts.items():
        outcome = perform(listing(name), who=who, interface=interface)
        answers[what] = (outcome.status, outcome.error, outcome.value)
    assert len(set(map(repr, answers.values()))) == 1, answers
    assert next(iter(answers.values()))[1].code == "CW-NOT-FOUND"
    assert len(audit_records(kind=EventKind.CONNECTION)) == before
    assert ANN not in repr(answers)


@pytest.mark.requirement("POL-11", "RBAC-3")
def test_caller_cannot_choose_target_domain_or_secret(perform, admin, server, world):
    """The confused deputy: arguments that would have the runtime use what is not the caller's."""
    own = admin.list(by=local_principal("cli"), user="ann")[0]
    forged = replace(listing(), target=replace(own, url=server.url("bob")))
    outcome = perform(forged)
    assert (outcome.status, outcome.error.code) == (Status.ERROR, "CW-BAD-ACCOUNT")
    evil = world.web("evil.test.example", tls=True)
    outcome = perform(listing(), allow_domains=(evil.rule,), secrets=(secret_of("bob"),))
    assert outcome.status is Status.OK
    assert evil.seen == []
    used = [each["body"] for each in audit_records(kind=EventKind.VAULT)]
    assert {tuple(each.get("names", ())) for each in used} <= {(), (secret_of("ann"),)}


@pytest.mark.requirement("RBAC-3")
def test_account_cannot_name_the_secret_of_another_user(perform, admin, server):
    """A user connects the address of another, and every name under which the password may be."""
    mallory = Principal("mallory", "http", "power-user")
    names = {"the same name": "CAL", "its name in the vault": secret_of("ann"), "another": "X"}
    found = {}
    for number, (what, name) in enumerate(names.items()):
        known = {"kind": "caldav", "url": server.url("ann"), "username": "ann", "secret": name}
        admin.add(f"a{number}", by=mallory, **known)
        outcome = perform(listing(f"a{number}"), who="mallory")
        found[what] = (outcome.error.code, outcome.value)
    assert set(found.values()) == {("CW-VAULT-UNKNOWN", None)}
    with pytest.raises(Denied, match="config:write"):
        admin.add("b", by=mallory, user="ann", **known)
    with pytest.raises(Denied, match="config:write"):
        admin.list(by=mallory, user="ann")
    with pytest.raises(Denied, match="secrets:use"):
        admin.add("c", by=Principal("gus", "http", "user"), **known)


@pytest.mark.requirement("RBAC-3")
def test_no_user_takes_the_places_of_others(admin, server):
    greedy = Principal("greedy", "http", "power-user")
    known = {"kind": "caldav", "url": server.url("ann"), "username": "a", "secret": "CAL"}
    for number in range(50):
        admin.add(f"a{number}", by=greedy, **known)
    with pytest.raises(BadInput, match="too many"):
        admin.add("more", by=greedy, **known)
    assert admin.add("one", by=Principal("modest", "http", "power-user"), **known)


@pytest.mark.requirement("RBAC-2", "POL-1")
def test_role_and_rules_bound_the_use(perform, world):
    role = Principal("ann", "http", "user")
    assert perform(listing(), principal=role).error.code == "CW-ROLE"
    scoped = Principal("ann", "http", "owner", frozenset())
    assert perform(listing(), principal=scoped).error.code == "CW-ROLE"
    (world.folder / "rules.toml").write_text('[permissions]\nallow = ["list_events"]\n')
    assert perform(listing()).error.code == "CW-DENIED"  # its host has no rule
    rules = RULES.replace('"create_event", ', "")
    (world.folder / "rules.toml").write_text(rules)
    assert perform(listing()).status is Status.OK
    assert perform(creating("x")).error.code == "CW-DENIED"


@pytest.mark.requirement("NET-3", "NET-4")
def test_account_url_is_no_way_to_inner_addresses(perform, admin, server, world):
    world.names["inner.test.example"] = ["10.1.2.3"]
    (world.folder / "rules.toml").write_text('[permissions]\nallow = ["list_events", "WebFetch"]\n')
    urls = {
        "meta": "https://169.254.169.254/latest/",
        "loop": "https://[::1]:5232/",
        "inner": "https://10.0.0.1/",
        "named": "https://inner.test.example/",
    }
    found = {}
    for name, url in urls.items():
        connect(admin, server, name, "ann", "CAL", user="ann", url=url)
        outcome = perform(listing(name))
        found[name] = outcome.error.code if outcome.error else outcome.value
        assert ANN not in repr(outcome)
    # Addresses are refused by the rules already, names once they are resolved.
    assert found == {**dict.fromkeys(urls, "CW-DENIED"), "named": "CW-ADDRESS"}


@pytest.mark.requirement("NET-3")
def test_account_url_has_one_reading(admin, server):
    for url in (
        "http://cal.test.example/",
        "file:///etc/passwd",
        "https://user:word@cal.test.example/",
        "https://cal.test.example/?next=x",
        "https://cal.test.example/a b",
        "https://",
        "",
    ):
        with pytest.raises(CellwallError):
            connect(admin, server, "odd", "ann", "CAL", user="ann", url=url)


@pytest.mark.requirement("GRD-1", "ERR-1")
def test_texts_of_an_event_cannot_inject_properties_or_headers(perform, server):
    evil = "Lunch\r\nATTENDEE:mailto:eve@evil.example\r\nEND:VEVENT\r\n\r\nPUT / HTTP/1.1\u2028X\x00\x85"
    before = len(server.files("ann"))
    made = perform(creating(evil, description="a\nBEGIN:VALARM\n\\,;" + "ä" * 300))
    assert made.status is Status.OK, made.error
    (stored,) = [each for each in server.files("ann") if made.value["uid"] in each]
    assert len(server.files("ann")) == before + 1
    names = [line.partition(":")[0] for line in stored.replace("\r\n ", "").splitlines()]
    assert "ATTENDEE" not in names
    assert names.count("BEGIN") == names.count("END") == 2
    (event,) = [
        each for each in perform(listing()).value["events"] if each["uid"] == made.value["uid"]
    ]
    assert event["summary"].startswith("Lunch\nATTENDEE:mailto:eve@evil.example\nEND:VEVENT")
    assert event["description"] == "a\nBEGIN:VALARM\n\\,;" + "ä" * 300


BOMB = b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaa">%s]><b>&z;</b>' % b"".join(
    b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(20)
)
XXE = (
    b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>'
    b'<D:multistatus xmlns:D="DAV:">&f;</D:multistatus>'
)
HOSTILE = {
    "an entity bomb": BOMB,
    "an external entity": XXE,
    "no XML": b"\x00\xff",
    "deep nesting": b'<D:multistatus xmlns:D="DAV:">' + b"<a>" * 5000,
    "many elements": b'<D:multistatus xmlns:D="DAV:">' + b"<a/>" * 60_000 + b"</D:multistatus>",
    "another document": b"<html>hello</html>",
    "an unknown encoding": b'<?xml version="1.0" encoding="x-evil"?><a/>',
    "nothing": b"",
    "a large body": b'<D:multistatus xmlns:D="DAV:">' + b" " * (9 << 20) + b"</D:multistatus>",
}


@pytest.mark.requirement("RED-2", "NET-4")
def test_hostile_answer_is_refused_within_bounds(perform, admin, server, world, vault):
    bodies: list[bytes] = []
    site = world.web(
        "hostile.test.example",
        tls=True,
        reply=lambda _: (207, {"Content-Type": "application/xml"}, bodies[-1]),
    )
    vault.set(secret_of("ann", "HOSTILE_CAL"), "word-for-the-hostile-server")
    vault.grant(
        secret_of("ann", "HOSTILE_CAL"),
        host=site.name,
        ports=(site.port,),
        place="basic",
        field="password",
    )
    connect(admin, server, "bad", "ann", "HOSTILE_CAL", user="ann", url=f"{site.url}/cal/")
    found = {}
    for what, body in HOSTILE.items():
        bodies.append(body)
        outcome = perform(listing("bad"))
        found[what] = outcome.error.code if outcome.error else outcome.value
    expected = dict.fromkeys(HOSTILE, "CW-ACCOUNT-DATA")
    assert found == {**expected, "a large body": "CW-BODY-TOO-LARGE"}
    assert [seen.method for seen in site.seen] == ["REPORT"] * len(HOSTILE)  # the control
    bodies.append(b'<D:multistatus xmlns:D="DAV:"/>')
    assert perform(listing("bad")).value == {"events": []}


@pytest.mark.requirement("SEC-5", "SEC-2")
def test_password_reaches_its_server_alone_and_nothing_that_is_shown(
    perform, admin, server, world, vault
):
    """A server that echoes the request, redirects, or was not granted the secret."""
    word = "word-for-the-echoing-server"

    def echo(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if "elsewhere" in seen.path:
            return 307, {"Location": f"https://{HOST}:{server.port}/"}, b""
        text = json.dumps([seen.headers, word]).encode()
        data = b"BEGIN:VEVENT\nUID:1\nSUMMARY:" + text + b"\nEND:VEVENT"
        body = b'<m xmlns="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav"><response><propstat><prop>'
        body += b"<C:calendar-data><![CDATA[" + data + b"]]></C:calendar-data></prop></propstat>"
        body = body.replace(b"<m ", b"<multistatus ") + b"</response></multistatus>"
        return 207, {"Content-Type": "text/xml"}, body

    site = world.web("echo.test.example", tls=True, reply=echo)
    vault.set(secret_of("ann", "ECHO_CAL"), word)
    url = f"{site.url}/cal/"
    connect(admin, server, "echo", "ann", "ECHO_CAL", user="ann", url=url)
    outcome = perform(listing("echo"))
    assert outcome.error.code == "CW-VAULT-NOT-GRANTED"
    assert site.seen == []
    vault.grant(
        secret_of("ann", "ECHO_CAL"),
        host=HOST,
        ports=(server.port,),
        place="basic",
        field="password",
    )
    assert perform(listing("echo")).error.code == "CW-SECRET-UNFIT"  # granted for another host
    vault.grant(
        secret_of("ann", "ECHO_CAL"),
        host=site.name,
        ports=(site.port,),
        place="basic",
        field="password",
    )
    outcome = perform(listing("echo"), audience="model")
    assert outcome.status is Status.OK, outcome.error
    assert len(site.seen) == 1
    texts = [repr(outcome), json.dumps(outcome.to_json()), json.dumps(audit_records())]
    (encoded,) = [
        value.removeprefix("Basic ")
        for name, value in site.seen[0].headers.items()
        if name.lower() == "authorization"
    ]
    assert not [text for text in texts if word in text or encoded in text]
    connect(admin, server, "away", "ann", "ECHO_CAL", user="ann", url=f"{site.url}/elsewhere/")
    assert perform(listing("away")).error.code == "CW-REDIRECT"


@pytest.mark.requirement("NET-5")
def test_secret_of_the_vault_does_not_leave_in_an_event(perform, server):
    before = len(server.files("ann"))
    outcome = perform(creating(f"see {BOB}"))
    assert (outcome.status, outcome.error.code) == (Status.ERROR, "CW-LEAK")
    assert len(server.files("ann")) == before


@pytest.mark.requirement("ERR-1")
def test_malformed_use_is_refused(perform):
    for operation in (
        UseAccount("work", "list_events"),
        UseAccount("work", "list_events", start="2026-01-01", end="2026-02-01"),
        UseAccount("work", "list_events", start=SPAN["end"], end=SPAN["start"]),
        UseAccount("", "list_events", **SPAN),
        UseAccount("x" * 65, "list_events", **SPAN),
        UseAccount("work", "create_event", **SPAN),
        creating(" "),
        creating("x" * 9000),
        creating("\ud800"),
        creating("x", start="tomorrow"),
        creating("x", start="0001-01-01T00:00:00+23:59"),
    ):
        outcome = perform(operation)
        assert outcome.status is Status.ERROR
        assert outcome.error.code in {"CW-BAD-ACCOUNT", "CW-BAD-EVENT", "CW-NOT-TEXT"}


@pytest.mark.requirement("INT-1", "RBAC-3")
def test_calendar_of_the_sdk(config, vault, admin, server):
    connect(admin, server, "home", "bob", "LOCAL_CAL", username="bob")
    calendar = cellwall.Calendar("home", config=config)
    try:
        uid = calendar.create("Dinner", start="2026-01-10T18:00:00Z", end="2026-01-10T20:00:00Z")
        assert [(each["uid"], each["summary"]) for each in calendar.events(**SPAN)] == [
            (uid, "Dinner")
        ]
        with pytest.raises(cellwall.NotFound):
            cellwall.Calendar("work", config=config).events(**SPAN)
    finally:
        wiring.close_shared(wiring.shared_app(config).store.home)
