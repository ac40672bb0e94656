"""The driver of agent-sandbox against a double of the API server with the real schemas (SRV-6)."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.core.errors import BadInput, Busy, CellwallError
from cellwall.core.hosts import Holder
from cellwall.core.ids import check_id, new_id
from cellwall.fleet.claims import ClaimState, host_id_of, read_claim
from cellwall.fleet.engine import AnswerBroken, HostLost, Wish
from cellwall.fleet.kubernetes import CLAIMS, KubernetesFleet, SandboxSettings
from cellwall.fleet.kubernetes_api import ClusterSettings, Conflict, KubernetesApi, KubernetesFailed
from cellwall.fleet.request_bodies import RequestBodies
from kubernetes_double import ApiDouble, api_server, serving, write_certificate

pytestmark = [pytest.mark.requirement("SRV-6"), pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class HolderTable:
    """Of the database: which service has a session."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.counts: dict[str, int] = {}

    async def count_sessions(self) -> dict[str, int]:
        return self.counts

    async def find_holder(self, _kind: str, name: str) -> Holder | None:
        return self.holders.get(name)


class World:
    """The double, and how to reach it."""

    def __init__(self, folder: Path, context: ssl.SSLContext, api: ApiDouble, port: int) -> None:
        self.folder, self.context, self.api, self.hosts = folder, context, api, HolderTable()
        (folder / "token").write_text("first-token\n")
        self.cluster = ClusterSettings(
            url=f"https://127.0.0.1:{port}",
            token_file=str(folder / "token"),
            ca_file=str(folder / "ca.crt"),
            timeout_s=5.0,
        )
        self.settings = SandboxSettings(
            service_ca_file=str(folder / "ca.crt"),
            ready_s=20.0,
            pools={"data": "big", "cuda": "gpu"},
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubernetesApi]:
        api = KubernetesApi(self.cluster)
        try:
            yield api
        finally:
            await api.close()

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[KubernetesFleet]:
        async with self.client() as api:
            bodies = RequestBodies(max_bytes=1000, max_total_bytes=1000)
            fleet = KubernetesFleet(api, self.hosts, self.settings, bodies=bodies)  # type: ignore[arg-type]
            try:
                async with anyio.create_task_group() as tasks:
                    await fleet.look()
                    tasks.start_soon(fleet.watch)
                    yield fleet
                    tasks.cancel_scope.cancel()
            finally:
                await fleet.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("cluster")
    return folder, write_certificate(folder)


@pytest.fixture
def world(certificate: tuple[Path, ssl.SSLContext]) -> Iterator[World]:
    folder, context = certificate
    with api_server(context) as (api, port):
        yield World(folder, context, api, port)


async def until(fleet: KubernetesFleet, is_so: Any) -> None:
    with anyio.fail_after(20):
        while not is_so(await fleet.list()):
            await anyio.sleep(0.02)


async def test_a_session_claims_a_sandbox_of_its_pool_and_gets_the_service_in_it(world: World):
    async with world.fleet() as fleet:
        first = await fleet.place(Wish())
        second = await fleet.place(Wish(template="data"))
        third = await fleet.place(Wish(labels={"pool": "gpu"}))
        claims = list(world.api.claims.values())
        assert [each["spec"]["warmPoolRef"]["name"] for each in claims] == [
            "cellwall",
            "big",
            "gpu",
        ]
        names = [each["status"]["sandbox"]["name"] for each in claims]
        assert [host_id_of(name) for name in names] == [first, second, third]
        assert check_id(first) == first
        states = {state.id: state for state in await fleet.list()}
        assert set(states) == {first, second, third}
        assert states[third].labels == {"pool": "gpu"}
        with pytest.raises(Busy, match="no labels but"):
            await fleet.place(Wish(labels={"gpu": "a100"}))


async def test_a_client_reaches_no_pool_that_is_not_of_this_fleet(world: World):
    """The namespace may have pools of other tenants, and the label comes from the client."""
    async with world.fleet() as fleet:
        for pool in ("other-tenant", "../sandboxes", "cellwall\n", "-"):
            with pytest.raises(Busy, match="no such pool"):
                await fleet.place(Wish(labels={"pool": pool}))
        assert world.api.claims == {}
        await fleet.place(Wish(labels={"pool": "big"}))  # the control
        assert len(world.api.claims) == 1


async def test_a_session_claims_few_sandboxes_where_none_of_them_answers(world: World):
    async with world.fleet() as fleet:
        tried = frozenset(new_id("svc") for _ in range(4))
        await fleet.place(Wish(avoided=tried))  # the control
        with pytest.raises(Busy, match="do not answer"):
            await fleet.place(Wish(avoided=tried | {new_id("svc")}))
        assert len(world.api.claims) == 1


async def test_what_is_no_address_of_a_pod_is_never_connected_to():
    claim = {"metadata": {"name": "a"}}
    ready = [{"type": "Ready", "status": "True"}]

    def read(address: object) -> ClaimState:
        sandbox = {"name": "pod", "podIPs": [address]}
        return read_claim({**claim, "status": {"conditions": ready, "sandbox": sandbox}}, None)

    for wrong in ("evil.example", "10.0.0.1:1/x#", "10.0.0.1@evil.example", "", 7, None, ["::1"]):
        assert (read(wrong).is_ready, read(wrong).address) == (False, "")
    for right in ("10.0.0.1", "fd00::7"):  # the control
        assert (read(right).is_ready, read(right).address) == (True, right)


async def test_requests_about_no_session_claim_one_sandbox_for_all(world: World):
    found: list[str] = []
    async with world.fleet() as fleet:

        async def ask() -> None:
            found.append(await fleet.standby())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)
        assert len(set(found)) == len(world.api.claims) == 1
        second = await fleet.place(Wish())  # the control: a session has its own
        assert second not in found


async def test_a_sandbox_without_a_session_is_given_back_and_one_stays(world: World):
    async with world.fleet() as fleet:
        refused, used, idle = [await fleet.place(Wish()) for _ in range(3)]
        await fleet.release(refused)
        await until(fleet, lambda states: len(states) == 2)
        more = await fleet.place(Wish())
        hosts = {used, idle, more}
        world.hosts.counts = {used: 2}
        await fleet.sweep()
        await until(fleet, lambda states: {state.id for state in states} == hosts)
        await fleet.sweep()
        # The first by its id answers for requests about no session.
        kept = {used, min(hosts)}
        await until(fleet, lambda states: {state.id for state in states} == kept)
        while len(world.api.claims) > 1:
            await fleet.remove(max(kept))
            kept.discard(max(kept))
        await fleet.release(*kept)
        assert len(world.api.claims) == 1


async def test_a_claim_that_breaks_the_schema_is_refused_by_the_double(world: World):
    """The positive control of every test here."""
    async with world.client() as api:
        wrong = {"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
                 "metadata": {"name": "a"}, "spec": {"warmPoolReff": {"name": "b"}}}  # fmt: skip
        with pytest.raises(KubernetesFailed, match="422"):
            await api.create(CLAIMS, wrong)
    assert world.api.claims == {}


async def test_a_sandbox_that_never_becomes_ready_is_given_back(world: World):
    world.api.is_generous = False
    world.settings = replace(world.settings, ready_s=0.3)
    async with world.fleet() as fleet:
        with pytest.raises(Busy, match="no sandbox became ready") as caught:
            await fleet.place(Wish())
        assert caught.value.code == "CW-FLEET-FULL"
    assert world.api.claims == {}


async def test_a_sandbox_that_is_no_longer_ready_is_lost_with_its_sessions(world: World):
    async with world.fleet() as fleet:
        host_id = await fleet.place(Wish())
        session = new_id("sbx")
        world.hosts.holders[session] = Holder(host_id, is_ended=False, is_lost=False)
        found = await fleet.find("session", session)
        assert found is not None
        assert (found.host_id, found.is_lost) == (host_id, False)
        (name,) = world.api.claims
        world.api.make_ready(name, status="False")
        await until(fleet, lambda states: [state.is_lost for state in states] == [True])
        assert await fleet.lost() == (host_id,)
        found = await fleet.find("session", session)
        assert found is not None
        assert found.is_lost
        with pytest.raises(HostLost):
            await fleet.call(host_id, {"type": "http"}, _nothing, _ignore)
        assert await fleet.find("session", new_id("sbx")) is None


async def test_drain_is_noted_at_the_claim_and_a_conflict_is_decided_again(world: World):
    async with world.fleet() as fleet:
        host_id = await fleet.place(Wish())
        reads = iter(["stale"])
        read = fleet._api.read

        async def read_stale(kind: str, name: str) -> Any:
            found = await read(kind, name)
            if next(reads, None):  # another writer is first
                claim = json.loads(json.dumps(world.api.claims[name]))
                claim["metadata"]["labels"]["other"] = "writer"
                world.api.write("MODIFIED", claim)
            return found

        fleet._api.read = read_stale  # type: ignore[method-assign]
        await fleet.drain(host_id)
        (claim,) = world.api.claims.values()
        assert claim["metadata"]["annotations"] == {"cellwall.dev/draining": "true"}
        assert claim["metadata"]["labels"]["other"] == "writer"
        assert [state.is_draining for state in await fleet.list()] == [True]
        with pytest.raises(Busy, match="drains or is gone"):
            await fleet.place(Wish(host_id=host_id))
        await fleet.drain(host_id, is_draining=False)
        assert await fleet.place(Wish(host_id=host_id)) == host_id
        with pytest.raises(BadInput):
            await fleet.drain(new_id("svc"))
        await fleet.remove(host_id)
        assert (world.api.claims, await fleet.list()) == ({}, ())


async def test_an_expired_version_a_broken_stream_and_its_end_lead_to_a_new_list(world: World):
    def lists() -> int:
        return sum(method == "GET" and "watch" not in path for method, path in world.api.requests)

    world.api.watch_faults += [410, b'{"type": "ERROR", "object": {"code": 410}}\n']
    async with world.fleet() as fleet:
        await until(
            fleet, lambda _: lists() >= 4
        )  # ours, the first of `watch`, and after each fault
        world.api.watch_faults += [b"{not json\n"]
        world.api.end_watches()
        await until(fleet, lambda _: lists() >= 5)
        host_id = await fleet.place(Wish())
        assert host_id in {state.id for state in await fleet.list()}


async def test_too_many_requests_are_repeated_but_a_claim_is_made_once(world: World):
    async with world.client() as api:
        world.api.faults += [429, 429]
        assert await api.list(CLAIMS, selector="a=b") == ([], "100")
        world.api.faults += [429] * 4
        with pytest.raises(Busy) as caught:
            await api.list(CLAIMS, selector="a=b")
        assert caught.value.code == "CW-KUBERNETES-BUSY"
        world.api.faults += [429]
        before = len(world.api.requests)
        with pytest.raises(Busy):
            await api.create(CLAIMS, {})
        assert len(world.api.requests) == before + 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (b"<html>", "CW-KUBERNETES-ANSWER"),
        (b"[1]", "CW-KUBERNETES-ANSWER"),
        (b'{"items": 1, "metadata": {"resourceVersion": "1"}}', "CW-KUBERNETES-ANSWER"),
        (b'{"items": []}', "CW-KUBERNETES-ANSWER"),
        (403, "CW-KUBERNETES-DENIED"),
        (500, "CW-KUBERNETES"),
        ("hang", "CW-KUBERNETES-AWAY"),
    ],
)
async def test_an_answer_that_is_none_is_told_and_changes_nothing(world: World, fault, code):
    world.cluster = replace(world.cluster, timeout_s=0.5)
    async with world.client() as api:
        world.api.faults.append(fault)
        with pytest.raises(CellwallError) as caught:
            await api.list(CLAIMS, selector="a=b")
        assert caught.value.code == code
        assert caught.value.hint
        world.api.released.set()


async def test_the_token_is_read_for_each_request_and_never_told(world: World):
    async with world.client() as api:
        await api.list(CLAIMS, selector="a=b")
        world.api.token = "second-token"
        with pytest.raises(KubernetesFailed) as caught:
            await api.list(CLAIMS, selector="a=b")
        assert caught.value.code == "CW-KUBERNETES-DENIED"
        assert "token" not in caught.value.message
        (world.folder / "token").write_text("second-token\n")
        await api.list(CLAIMS, selector="a=b")
        (world.folder / "token").unlink()
        with pytest.raises(KubernetesFailed) as caught:
            await api.list(CLAIMS, selector="a=b")
        assert caught.value.code == "CW-KUBERNETES-TOKEN"


async def test_another_authority_is_not_trusted(world: World, tmp_path: Path):
    write_certificate(tmp_path)
    world.cluster = replace(world.cluster, ca_file=str(tmp_path / "ca.crt"))
    async with world.client() as api:
        with pytest.raises(Busy) as caught:
            await api.list(CLAIMS, selector="a=b")
        assert caught.value.code == "CW-KUBERNETES-AWAY"
    assert world.api.requests == []


async def test_a_conflict_and_a_missing_claim_are_told_apart(world: World):
    async with world.client() as api:
        world.api.faults.append(409)
        with pytest.raises(Conflict):
            await api.read(CLAIMS, "a")
        await api.delete(CLAIMS, "gone")


class PodService(BaseHTTPRequestHandler):
    """A service in a pod; it ends the connection in the middle of /broken."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, bytes]] = []  # noqa: RUF012  # set anew by each test

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, self.headers["authorization"], body))
        if self.path == "/silent":
            self.close_connection = True
            return
        self.send_response(201)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("x-told", "yes")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        if self.path == "/endless":
            with suppress(OSError):
                while True:
                    self.wfile.write(b"4\r\nmore\r\n")
            self.seen.append(("its client is gone", "", b""))
            self.close_connection = True
            return
        if self.path == "/broken":
            self.close_connection = True
            return
        self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


class _Asking:
    """A client that sends a body, and leaves when it is told to."""

    def __init__(self) -> None:
        self.leaves = anyio.Event()
        self._has_sent = False

    async def receive(self) -> dict[str, Any]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": b"asked", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def _ignore(_message: Any) -> None:
    pass


async def test_a_request_reaches_the_service_of_its_sandbox_and_is_never_sent_twice(world: World):
    handler = type("Service", (PodService,), {"seen": []})
    with serving(handler, world.context) as port:
        world.settings = replace(world.settings, port=port)
        async with world.fleet() as fleet:
            host_id = await fleet.place(Wish())
            got: list[dict[str, Any]] = []

            async def send(message: Any) -> None:
                got.append(dict(message))

            async def call(path: str) -> None:
                headers = [(b"authorization", b"Bearer t"), (b"connection", b"close")]
                scope = {"type": "http", "method": "POST", "path": path, "query_string": b"",
                         "headers": headers}  # fmt: skip
                await fleet.call(host_id, scope, _Asking().receive, send)

            await call("/v1/sessions")
            assert handler.seen == [("/v1/sessions", "Bearer t", b"asked")]
            assert got[0]["status"] == 201
            assert (b"x-told", b"yes") in got[0]["headers"]
            assert b"".join(each.get("body", b"") for each in got) == b"firstsecond"
            with pytest.raises(AnswerBroken):
                await call("/broken")
            with pytest.raises(HostLost, match="may have been executed"):
                await call("/silent")
            assert [path for path, *_ in handler.seen] == ["/v1/sessions", "/broken", "/silent"]
            with pytest.raises(BadInput):
                await fleet.call(host_id, {"type": "websocket"}, _nothing, send)
    async with world.fleet() as fleet:
        with pytest.raises(HostLost, match="was lost, and the session ended"):  # nobody listens
            scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
            await fleet.call(host_id, scope, _Asking().receive, _ignore)


async def test_an_answer_without_an_end_ends_with_its_client(world: World):
    handler = type("Service", (PodService,), {"seen": []})
    with serving(handler, world.context) as port:
        world.settings = replace(world.settings, port=port)
        async with world.fleet() as fleet:
            host_id = await fleet.place(Wish())
            client, count = _Asking(), 0

            async def send(_message: Any) -> None:
                """As a server without its client: without effect."""
                nonlocal count
                count += 1
                if count == 100:
                    client.leaves.set()

            scope = {"type": "http", "method": "POST", "path": "/endless", "query_string": b"",
                     "headers": [(b"authorization", b"Bearer t")]}  # fmt: skip
            with anyio.fail_after(30):
                await fleet.call(host_id, scope, client.receive, send)
                while len(handler.seen) < 2:
                    await anyio.sleep(0.01)
        assert [path for path, *_ in handler.seen] == ["/endless", "its client is gone"]
