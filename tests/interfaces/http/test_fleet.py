"""A real fleet: PostgreSQL, Ray, a front and two hosts as processes (SRV-6)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from anyio.from_thread import start_blocking_portal
from e2b_code_interpreter import Sandbox

import cellwall
from cellwall.core.ids import new_id
from cellwall.packages.feed import Feed
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, Affected
from conftest import need
from databases import PostgresServer, postgres  # noqa: F401  # a fixture
from fleet_hosts import DEADLINE_S, Machine, RunningFleet, running_fleet, until
from fleet_links import LoopbackLinks
from interfaces.http.running_service import new_session
from interfaces.mcp_service import mcp_client
from outside import Outside, internet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.requirement("SRV-6"),
    pytest.mark.xdist_group("postgresql"),
]
# A pause of a busy machine is no lost host.
PATIENT = "lease_s = 8.0"


SHIPPED = Path(cellwall.__file__).parent / "interfaces/http/default_policies/service.toml"
AS_JSON = {"Content-Type": "application/json"}
MAX_MAPPED_BYTES = 1024 * 1024 * 1024
PIECE_BYTES = 16 * 1024 * 1024
VALUE = "ghp_value-that-is-looked-for-0001"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with internet(tmp_path_factory.mktemp("outside")) as found:
        yield found


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, world: Outside) -> Iterator[RunningFleet]:  # noqa: F811  # a fixture
    need(find_spec("ray"), "Ray (extra fleet, Python 3.11 to 3.13)")
    folder = Path(tempfile.mkdtemp(prefix="cw-fleet-", dir="/var/tmp"))
    more = (
        f'[vault]\nkey = "file"\n[egress]\ndns_servers = ["127.0.0.1:{world.dns_port}"]\n'
        'dangerously_allow_addresses = ["127.0.0.0/8"]\n'
    )
    shared = folder / "shared"
    shared.mkdir(mode=0o700)
    try:
        with running_fleet(
            folder,
            postgres.new_url(),
            LoopbackLinks(),
            config=f'{PATIENT}\nsnapshots = "{shared}"',
            more=more,
            keeper="host1",
            environment={"SSL_CERT_FILE": world.ca_file},
        ) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def vault(fleet: RunningFleet) -> None:
    """On the host that keeps it."""
    fleet.hosts[0].cellwall("vault", "init")


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def sessions_by_host(fleet: RunningFleet, client: httpx.Client) -> dict[str, str]:
    """One session on each host."""
    found: dict[str, str] = {}
    for host in fleet.hosts:
        while host.id not in found:
            session = new_session(client)
            found.setdefault(holder(fleet, session), session)
    return found


def holder(fleet: RunningFleet, session: str) -> str:
    """The host that has a session, as the database knows it."""
    return fleet.places()[session]


def states(client: httpx.Client) -> dict[str, str]:
    """The hosts with their state, over HTTP; none while the host that was asked is being lost."""
    answer = client.get("/v1/fleet/hosts")
    hosts = answer.json()["hosts"] if answer.status_code == 200 else []
    return {each["id"]: each["state"] for each in hosts}


def has_in_memory(machine: Machine, text: str, *, only: Sequence[str] = ()) -> bool:
    """Whether a process of this machine has a text; `only`: of these programs."""
    return any(
        text.encode() in content
        for pid in machine.pids()
        if not only or program_of(pid) in only
        for content in memory_of(pid)
    )


def program_of(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def memory_of(pid: int) -> Iterator[bytes]:
    """What a process can write, piece by piece; Ray's object store is among it."""
    with suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            start, end = (int(each, 16) for each in place.split("-"))
            if "w" not in rights or end - start > MAX_MAPPED_BYTES:
                continue
            with suppress(OSError):  # nothing is there
                for at in range(start, end, PIECE_BYTES):
                    memory.seek(at)
                    yield memory.read(min(PIECE_BYTES, end - at))


def run(client: httpx.Client, session: str, command: str, **headers: str) -> dict[str, Any]:
    path = f"/v1/sessions/{session}/commands"
    ran = client.post(path, json={"command": command}, headers=headers)
    assert ran.status_code == 200, ran.text
    return ran.json()


def test_one_address_serves_sessions_of_all_hosts(fleet):
    with fleet.client() as client, fleet.client("bob", "user") as other:
        sessions = sessions_by_host(fleet, client)
        assert sorted(sessions) == sorted(host.id for host in fleet.hosts)
        for session in sessions.values():
            path = f"/v1/sessions/{session}"
            assert run(client, session, "echo hi")["stdout"] == "hi\n"
            assert client.put(f"{path}/files/a.txt", content=b"abc").status_code in (200, 201, 204)
            assert run(client, session, "cat a.txt")["stdout"] == "abc"
            body, accept = {"command": "echo one; echo two"}, {"Accept": "text/event-stream"}
            streamed = client.post(f"{path}/commands", json=body, headers=accept)
            assert "one" in streamed.text
            assert "two" in streamed.text
            # To others it is as unknown as any other id, on whichever host.
            assert error_of(other.get(path)) == (404, "CW-NOT-FOUND")
        listed = {each["id"] for each in client.get("/v1/sessions").json()["sessions"]}
        assert listed >= set(sessions.values())
        assert other.get("/v1/sessions").json()["sessions"] == []


def test_a_run_with_the_same_key_is_executed_once(fleet):
    with fleet.client() as client:
        session = new_session(client)
        key = {"Idempotency-Key": "first"}
        first = run(client, session, "echo x >> n; wc -l < n", **key)
        again = run(client, session, "echo x >> n; wc -l < n", **key)
        assert (first["stdout"], again["stdout"]) == ("1\n", "1\n")
        assert first["audit_id"] == again["audit_id"]
        assert run(client, session, "echo x >> n; wc -l < n")["stdout"] == "2\n"  # the control


@pytest.mark.long  # the other tests read that list too
def test_the_hosts_are_shown_over_http_as_by_the_command(fleet):
    with fleet.client() as client, fleet.client("bob", "user") as other:
        sessions = sessions_by_host(fleet, client)
        shown = client.get("/v1/fleet/hosts").json()
        told = fleet.status()
        assert shown["is_fleet"] is True
        assert [each["id"] for each in shown["hosts"]] == sorted(told) == sorted(sessions)
        for host in shown["hosts"]:
            assert host["state"] == "serves"
            assert host["version"] == told[host["id"]]["version"] != ""
            assert host["memory_bytes"] == told[host["id"]]["memory_bytes"] > 0
        assert [each["is_this"] for each in shown["hosts"]].count(True) == 1
        until(
            lambda: all(
                each["sessions"] >= 1 for each in client.get("/v1/fleet/hosts").json()["hosts"]
            )
        )
        assert error_of(other.get("/v1/fleet/hosts")) == (403, "CW-ROLE")


@pytest.mark.requirement("INT-2")
@pytest.mark.long  # sessions by the plain API are placed alike
def test_the_sdk_of_e2b_uses_sandboxes_of_all_hosts(fleet):
    at = f"{fleet.url}/e2b"
    options = {"api_key": fleet.token("eve", "user"), "api_url": at, "sandbox_url": at}
    sandboxes: dict[str, Sandbox] = {}
    try:
        while len(sandboxes) < len(fleet.hosts):
            made = Sandbox.create(timeout=600, retries=0, **options)
            sandboxes[made.sandbox_id] = made
            if len({holder(fleet, each) for each in sandboxes}) < len(sandboxes):
                sandboxes.pop(made.sandbox_id).kill()
        for name, sandbox in sandboxes.items():
            assert sandbox.commands.run(f"echo {name}").stdout == f"{name}\n"
            sandbox.files.write("name.txt", name)
            assert sandbox.files.read("name.txt") == name
            assert sandbox.run_code("6 * 7").text == "42"
            same = Sandbox.connect(name, retries=0, **options)
            assert same.commands.run("cat name.txt").stdout == name
        listed = Sandbox.list(retries=0, **options).next_items()
        assert {each.sandbox_id for each in listed} == set(sandboxes)
    finally:
        for sandbox in sandboxes.values():
            assert sandbox.kill()
    assert Sandbox.list(retries=0, **options).next_items() == []


@pytest.mark.requirement("SRV-1")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_mcp_client_keeps_its_sandbox_over_a_front(fleet, tmp_path, mode):
    url = f"{fleet.url}/mcp"
    with start_blocking_portal() as portal:
        for name in ("bob", "eve"):
            token = fleet.token(name, "user")
            with mcp_client(portal, url, token, tmp_path, mode=mode) as agent:
                assert agent.told("run_code", code=f"kept = '{name}'")["status"] == "ok"
                assert name in agent.told("run_code", code="kept")["output"]
                told = agent.told("run_command", command="echo hi > a; cat a")
                assert "hi\n" in told["output"]


@pytest.mark.requirement("SEC-3")
def test_a_session_uses_a_secret_that_another_host_keeps(fleet, vault, world, postgres):  # noqa: F811  # a fixture
    keeper, host = fleet.hosts
    api = world.web("api.example", tls=True)
    with fleet.client() as client:
        grant = {"host": "api.example", "ports": [api.port]}
        put = client.put("/v1/secrets/TOKEN", json={"value": VALUE, "grants": [grant]})
        assert put.status_code == 200, put.text
        body = {"secrets": ["TOKEN"], "allow_domains": [api.rule]}
        fleet.front.cellwall("fleet", "drain", keeper.id)
        until(lambda: states(client).get(keeper.id) == "drains")
        made = client.post("/v1/sessions", json=body)
        assert made.status_code == 201, made.text
        session = made.json()["id"]
        assert holder(fleet, session) == host.id
        unknown = client.post("/v1/sessions", json={**body, "secrets": ["OTHER"]})
        assert unknown.json()["error"]["code"] == "CW-VAULT-UNKNOWN"
        fleet.front.cellwall("fleet", "drain", keeper.id, "--undo")
        ask = f'curl -s -H "Authorization: $TOKEN" {api.url}/me; echo $TOKEN'
        told = run(client, session, ask)
        assert api.seen[-1].headers["authorization"] == VALUE, told
        assert "hfsecret_" in told["stdout"]
        assert VALUE not in told["stdout"]
        # The other hosts refuse to store secrets that nobody would use.
        there = client.get("/v1/secrets", headers={"Cellwall-Host": host.id})
        assert error_of(there) == (503, "CW-FLEET-KEEPER")
    lent = keeper.cellwall("audit", "search", "--kind", "vault", "--json")
    assert host.id in lent
    assert session in lent
    # Neither records, logs nor the database have the value; those of Ray are among them.
    folders = [fleet.folder, Path(postgres.folder), *map(Path, fleet.scratches)]
    seen = {each for folder in folders for each in folder.rglob("*") if "vault" not in each.parts}
    assert any(each.suffix == ".log" and "ray" in str(each) for each in seen)
    for each in seen:
        with suppress(OSError):  # a socket, or gone meanwhile
            assert VALUE.encode() not in each.read_bytes(), each


@pytest.mark.long  # reads the memory of all processes
@pytest.mark.requirement("SEC-3")
def test_a_secret_is_in_memory_of_its_keeper_and_of_the_host_of_its_session_alone(
    fleet, vault, world
):
    need(os.geteuid() == 0, "root, to read the memory of processes")
    keeper, host = fleet.hosts
    value, named = f"ghp_{new_id('looked')}", {"Cellwall-Host": host.id}
    api = world.web("looked.example", tls=True)
    grant = {"host": "looked.example", "ports": [api.port]}
    with fleet.client() as client:
        body = json.dumps({"value": value, "grants": [grant]})
        for size in (0, 1_000_000):  # Ray keeps larger arguments in its store, unless it is told
            stored = client.put("/v1/secrets/LOOKED", content=body + size * " ", headers=AS_JSON)
            assert stored.status_code == 200, stored.text
        # A session of the same user without secrets brings none to its host.
        assert client.post("/v1/sessions", json={}, headers=named).status_code == 201
        assert has_in_memory(keeper, value)
        assert not has_in_memory(host, value)
        asked = {"secrets": ["LOOKED"], "allow_domains": [api.rule]}
        made = client.post("/v1/sessions", json=asked, headers=named)
        assert made.status_code == 201, made.text
        run(client, made.json()["id"], f'curl -s -H "Authorization: $LOOKED" {api.url}/')
        assert api.seen[-1].headers["authorization"] == value
        assert has_in_memory(host, value)  # the control
        for machine in (fleet.front, *fleet.hosts):
            assert not has_in_memory(machine, value, only=("raylet", "gcs_server"))


@pytest.mark.long  # waits for hosts to see and to sign; the parts have their tests
def test_a_published_policy_and_feed_are_applied_on_all_hosts(fleet, tmp_path):
    policy = tmp_path / "policy.toml"
    with fleet.client() as client:
        sessions = sessions_by_host(fleet, client).values()
        for denied, wanted in (('"Bash(whoami)"', {"denied"}), ("", {"ok"})):
            # The rules of a service without any: later tests take snapshots and write files.
            policy.write_text(f"{SHIPPED.read_text()}deny = [{denied}]\n")
            told = fleet.front.cellwall("fleet", "publish", str(policy))
            assert told.startswith("the policy of the fleet is version ")

            def statuses(command: str) -> set[str]:
                return {run(client, each, command)["status"] for each in sessions}

            until(lambda wanted=wanted: statuses("whoami") == wanted)
            assert statuses("echo hi") == {"ok"}
    # The feed of the first machine replaces those of the hosts.
    affected = (Affected(Ecosystem.PYPI, "evil", frozenset({"1.0"}), ()),)
    evil = Advisory(
        "MAL-1", "2026-11-01T00:00:00.000000Z", "x", is_withdrawn=False, affected=affected
    )
    Feed(str(fleet.front.home / "packages")).add([evil], source="test")
    told = fleet.front.cellwall("fleet", "publish", "--feed")
    assert told == "the feed of the fleet is version 1\n"
    feeds = [Feed(str(host.home / "packages")) for host in fleet.hosts]
    until(lambda: all(each.advisories(Ecosystem.PYPI, "evil") for each in feeds))
    # Who is not the first host has no key to sign with.
    for words in ((str(policy),), ("--feed",)):
        fleet.hosts[0].cellwall("fleet", "publish", *words, code=125)


@pytest.mark.long  # waits for hosts to see and to sign; the parts have their tests
def test_the_record_of_all_hosts_verifies_and_a_changed_one_does_not(fleet, tmp_path):
    first, second = fleet.hosts
    with fleet.client() as client:
        for session in sessions_by_host(fleet, client).values():
            run(client, session, "echo hi")

    def logs(*words: str, code: int = 0) -> dict[str, dict[str, Any]]:
        told = json.loads(first.cellwall("fleet", "verify", "--json", *words, code=code))
        return {each["host_id"]: each for each in told["logs"]}

    until(lambda: all(each["witnessed"] for each in logs().values()) and len(logs()) == 2)
    copied = tmp_path / "audit"
    shutil.copytree(second.home / "audit", copied)
    assert logs("--log", str(copied))[second.id]["is_read"]  # the control
    records = next(each for each in sorted(copied.rglob("*.jsonl")) if each.stat().st_size)
    content = bytearray(records.read_bytes())
    content[len(content) // 2] ^= 1
    records.write_bytes(content)
    assert logs("--log", str(copied), code=1)[second.id]["problem"]


@pytest.mark.long  # the test of a secret drains one too
def test_a_host_that_drains_gets_no_session_and_serves_its_own(fleet):
    with fleet.client() as client:
        sessions = sessions_by_host(fleet, client)
        drained, other = fleet.hosts[0].id, fleet.hosts[1].id
        fleet.front.cellwall("fleet", "drain", drained)
        until(lambda: states(client) == {drained: "drains", other: "serves"})
        assert {holder(fleet, new_session(client)) for _ in range(4)} == {other}
        assert run(client, sessions[drained], "echo hi")["stdout"] == "hi\n"
        fleet.front.cellwall("fleet", "drain", drained, "--undo")
        until(lambda: holder(fleet, new_session(client)) == drained)


def test_z_sessions_of_a_killed_host_answer_that_it_was_lost(fleet):
    """The last one: its host stays lost."""
    with fleet.client() as client, fleet.client("bob", "user") as other:
        sessions = sessions_by_host(fleet, client)
        killed, left = fleet.hosts
        restarting = ""
        while not restarting:
            made = new_session(client, restart_from_snapshot=True)
            restarting = made if holder(fleet, made) == killed.id else ""
        key = {"Idempotency-Key": "before"}
        run(client, restarting, "echo kept > a", **key)
        answer = client.post(f"/v1/sessions/{restarting}/snapshots", json={})
        assert answer.status_code == 201, answer.text
        taken = answer.json()
        assert [each.name for each in (fleet.folder / "shared").iterdir()] == [
            f"{restarting}.snapshot"
        ]
        run(client, restarting, "echo lost > b")
        killed.kill()
        lost, kept = sessions[killed.id], sessions[left.id]
        path, body = f"/v1/sessions/{lost}/commands", {"command": "echo hi"}
        answer = until(lambda: (found := client.post(path, json=body)).status_code == 410 and found)
        assert error_of(answer) == (410, "CW-HOST-LOST")
        assert run(client, kept, "echo hi")["stdout"] == "hi\n"
        until(lambda: states(client) == {killed.id: "lost", left.id: "serves"})
        assert error_of(other.post(path, json=body)) == (404, "CW-NOT-FOUND")
        assert holder(fleet, new_session(client)) == left.id
        until(lambda: client.get(f"/v1/sessions/{lost}").json().get("state") == "ended")
        # It starts again elsewhere, with its next request, which is not executed.
        path, body = f"/v1/sessions/{restarting}/commands", {"command": "cat a; ls"}
        assert error_of(other.post(path, json=body)) == (404, "CW-NOT-FOUND")
        answer = client.post(path, json=body)
        assert error_of(answer) == (409, "CW-SESSION-RESTARTED"), answer.text
        assert holder(fleet, restarting) == left.id
        assert run(client, restarting, "cat a; ls")["stdout"] == "kept\na\n"
        shown = client.get(f"/v1/sessions/{restarting}").json()
        assert shown["restarted"] == taken["created"]
        again = client.post(path, json={"command": "echo kept > a"}, headers=key)
        assert error_of(again) == (410, "CW-HOST-LOST")
        later = {"Idempotency-Key": "after"}
        assert run(client, restarting, "echo new", **later)["stdout"] == "new\n"
        # Removed for good: its name cannot join again, with its own certificate and keys.
        fleet.front.cellwall("fleet", "remove", killed.id, "--revoke")
        until(lambda: states(client) == {left.id: "serves"})
        killed.close()
        fleet.launch_again(killed)
        assert killed.process.wait(DEADLINE_S) == 125
        assert b"CW-FLEET-REVOKED" in killed.process.stdout.read()
        assert run(client, kept, "echo hi")["stdout"] == "hi\n"
