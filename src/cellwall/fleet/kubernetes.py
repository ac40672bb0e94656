"""The fleet on Kubernetes by agent-sandbox: each host is a Sandbox that was claimed from a pool.

A new session claims a sandbox (SandboxClaim); the controller of agent-sandbox gives a warm one of
the pool, keeps its pod, and ends it with the claim. In the pod runs a service of Cellwall with the
shared database. What the claims are is read from the cluster, and kept nowhere else: any number of
fronts may run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import httpx2

from cellwall.core.errors import BadInput, Busy, CellwallError
from cellwall.core.hosts import Held, HostsPort
from cellwall.core.ids import new_id
from cellwall.fleet.claims import (
    DRAINS,
    ClaimState,
    host_state,
    name_of,
    read_claim,
    version_of,
)
from cellwall.fleet.engine import (
    AnswerBroken,
    HostState,
    Place,
    Receive,
    Scope,
    Send,
    Wish,
    host_lost,
    no_host,
)
from cellwall.fleet.kubernetes_api import (
    Conflict,
    KubernetesApi,
    Missing,
    Resource,
    WatchExpired,
    trusting,
)
from cellwall.fleet.request_bodies import RequestBodies

_log = logging.getLogger("cellwall.fleet")
CLAIMS = "extensions.agents.x-k8s.io/v1beta1/sandboxclaims"
_LABEL = "cellwall.dev/fleet"
_TRIES = 5
_PAUSE_S = 1.0
_SWEEP_EVERY_S = 60.0
_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Of one fleet in one namespace."""

    fleet: str = "cellwall"
    pools: Mapping[str, str] = field(default_factory=dict)
    """The SandboxWarmPool for each template of Cellwall."""
    default_pool: str = "cellwall"
    ready_s: float = 120.0
    """How long a session waits for its sandbox."""
    port: int = 8750
    service_ca_file: str = "/run/cellwall/service-ca.crt"
    """Who signs the certificates of the services in the pods."""
    service_name: str = "cellwall.internal"
    """The name in these certificates; the addresses of pods change."""
    answer_s: float = 3700.0


class KubernetesFleet:
    """Implements `FleetPort`; `watch` must run meanwhile."""

    is_claiming = True

    def __init__(
        self,
        api: KubernetesApi,
        hosts: HostsPort,
        settings: SandboxSettings,
        *,
        bodies: RequestBodies,
    ) -> None:
        self._api, self._hosts, self._settings, self._bodies = api, hosts, settings, bodies
        self._claims: dict[str, ClaimState] = {}
        self._changed = anyio.Event()
        self._has_listed = False
        self._standing_by = anyio.Lock()
        self._idle: frozenset[str] = frozenset()
        self._client = httpx2.AsyncClient(
            verify=trusting(settings.service_ca_file),
            timeout=httpx2.Timeout(10.0, read=settings.answer_s),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    # --- what the cluster says

    async def watch(self) -> None:
        """Follow the claims, until cancelled: list, then the changes since; again after a failure
        or when the version is too old."""
        while True:
            try:
                version = await self.look()
                while True:
                    version = await self._follow(version)
            except WatchExpired:
                continue
            except (CellwallError, Missing, Conflict) as error:
                _log.warning("the claims were not followed: %s", error)
            await anyio.sleep(_PAUSE_S)

    async def look(self) -> str:
        """All claims of the fleet; the version to follow from."""
        found, version = await self._api.list(CLAIMS, selector=self._selector)
        before = self._claims
        read = [read_claim(each, before.get(name_of(each))) for each in found]
        self._claims = {each.name: each for each in read}
        self._has_listed = True
        self._tell()
        return version

    async def _follow(self, version: str) -> str:
        async for what, claim in self._api.watch(CLAIMS, selector=self._selector, version=version):
            version = version_of(claim) or version
            name = name_of(claim)
            if what in {"ADDED", "MODIFIED"}:
                self._claims[name] = read_claim(claim, self._claims.get(name))
            elif what == "DELETED":
                self._claims.pop(name, None)
            self._tell()
        return version

    @property
    def _selector(self) -> str:
        return f"{_LABEL}={self._settings.fleet}"

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the port

    async def place(self, wish: Wish) -> str:
        if wish.host_id:
            found = self._find(wish.host_id)
            if found is None or not found.is_ready or found.is_draining:
                raise no_host("the sandbox with its files drains or is gone")
            return wish.host_id
        if len(wish.avoided) >= _TRIES:  # each of them was claimed for this session
            raise no_host("new sandboxes do not answer")
        if set(wish.labels) - {"pool"}:
            raise no_host("pools of sandboxes have no labels but `pool`")
        settings = self._settings
        pool = wish.labels.get("pool") or settings.pools.get(wish.template) or settings.default_pool
        # A client names the pool: others of the namespace may be for other tenants.
        if pool not in {*settings.pools.values(), settings.default_pool}:
            raise no_host("this fleet has no such pool of sandboxes")
        name = new_id("cw").replace("_", "-")
        await self._api.create(CLAIMS, self._claim(name, pool))
        try:
            with anyio.fail_after(self._settings.ready_s):
                return (await self._wait_until_ready(name)).host_id
        except BaseException as error:
            with anyio.CancelScope(shield=True):  # else the sandbox would stay without a session
                await self._api.delete(CLAIMS, name)
            if isinstance(error, TimeoutError):
                raise no_host("no sandbox became ready in time") from None
            raise

    def _claim(self, name: str, pool: str) -> Resource:
        group, version, _ = CLAIMS.split("/")
        return {
            "apiVersion": f"{group}/{version}",
            "kind": "SandboxClaim",
            "metadata": {"name": name, "labels": {_LABEL: self._settings.fleet}},
            "spec": {
                "warmPoolRef": {"name": pool},
                "lifecycle": {"shutdownPolicy": "Delete", "ttlSecondsAfterFinished": 300},
            },
        }

    async def standby(self) -> str:
        """One sandbox for all who wait: requests of strangers must not empty the pool."""
        async with self._standing_by:
            ready = sorted(each.host_id for each in self._claims.values() if each.is_ready)
            return ready[0] if ready else await self.place(Wish())

    async def release(self, host_id: str) -> None:
        """The session was refused there: the sandbox goes back, unless it answers for others."""
        claim = self._find(host_id)
        if claim is not None and any(
            each.is_ready and each.name != claim.name for each in self._claims.values()
        ):
            await self._api.delete(CLAIMS, claim.name)

    async def sweep(self) -> None:
        """Give back sandboxes whose sessions have ended; without a session twice in a row, since
        that of a new claim is stored a moment later. One stays for requests about no session."""
        counts = await self._hosts.count_sessions()
        ready = sorted(each.host_id for each in self._claims.values() if each.is_ready)
        idle = frozenset(each for each in ready if not counts.get(each)) - {*ready[:1]}
        for host_id in idle & self._idle:
            _log.info("sandbox %s is given back: it has no session", host_id)
            await self.remove(host_id)
        self._idle = idle

    async def keep_sweeping(self) -> None:
        """Until cancelled. A failed sweep changes nothing."""
        while True:
            await anyio.sleep(_SWEEP_EVERY_S)
            try:
                await self.sweep()
            except (CellwallError, Conflict) as error:
                _log.warning("sandboxes were not given back: %s", error)

    async def _wait_until_ready(self, name: str) -> ClaimState:
        while True:
            changed = self._changed
            found = self._claims.get(name)
            if found is not None and found.is_ready:
                return found
            await changed.wait()

    async def find(self, kind: Held, name: str) -> Place | None:
        holder = await self._hosts.find_holder(kind, name)
        if holder is None:
            return None
        found = self._find(holder.service_id)
        return Place(holder.service_id, holder.is_lost or found is None or not found.is_ready)

    def _find(self, host_id: str) -> ClaimState | None:
        claims = (each for each in self._claims.values() if each.sandbox)
        return next((each for each in claims if each.host_id == host_id), None)

    async def list(self) -> tuple[HostState, ...]:
        if not self._has_listed:
            await self.look()
        states = [host_state(each) for each in self._claims.values() if each.sandbox]
        return tuple(sorted(states, key=lambda state: state.id))

    async def lost(self) -> tuple[str, ...]:
        return tuple(state.id for state in await self.list() if state.is_lost)

    async def drain(self, host_id: str, *, is_draining: bool = True) -> None:
        """Noted at the claim, so that all fronts know."""
        for _ in range(_TRIES):
            claim = self._find(host_id)
            if claim is None:
                raise _unknown(host_id)
            mark = {DRAINS: "true" if is_draining else None}
            try:
                fresh = await self._api.read(CLAIMS, claim.name)
                about = {"resourceVersion": version_of(fresh), "annotations": mark}
                changed = await self._api.patch(CLAIMS, claim.name, {"metadata": about})
            except Conflict:
                continue
            except Missing:
                raise _unknown(host_id) from None
            self._claims[claim.name] = read_claim(changed, claim)
            return
        raise Busy("others change the sandbox at the same time", hint="Try again in a moment.")

    async def remove(self, host_id: str) -> None:
        claim = self._find(host_id)
        if claim is None:
            raise _unknown(host_id)
        await self._api.delete(CLAIMS, claim.name)
        self._claims.pop(claim.name, None)

    async def call(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        claim = self._find(host_id)
        if claim is None or not claim.is_ready:
            raise host_lost()
        if scope["type"] != "http":
            raise BadInput(
                "WebSockets do not reach sandboxes of this fleet",
                hint="Read output as server-sent events.",
                code="CW-FLEET-NO-WEBSOCKET",
            )
        async with self._bodies.read(scope, receive) as body:
            request, failure = self._request(claim, scope, body), None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_with_client, receive, tasks.cancel_scope)
                try:
                    await self._pass_on(request, host_id, send)
                except Exception as error:  # noqa: BLE001  # raised below, not as a group
                    failure = error
                tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure

    def _request(self, claim: ClaimState, scope: Scope, body: bytes) -> httpx2.Request:
        host = f"[{claim.address}]" if ":" in claim.address else claim.address
        target = scope.get("raw_path") or scope["path"].encode()
        if scope.get("query_string"):
            target += b"?" + scope["query_string"]
        return self._client.build_request(
            scope["method"],
            httpx2.URL(f"https://{host}:{self._settings.port}").copy_with(raw_path=target),
            headers=[(name, value) for name, value in scope["headers"] if name not in _HOP],
            content=body,
            extensions={"sni_hostname": self._settings.service_name},
        )

    async def _pass_on(self, request: httpx2.Request, host_id: str, send: Send) -> None:
        has_begun = False
        try:
            answer = await self._client.send(request, stream=True)
            try:
                has_begun = True
                headers = [(k.lower(), v) for k, v in answer.headers.raw if k.lower() not in _HOP]
                start = {"type": "http.response.start", "status": answer.status_code}
                await send({**start, "headers": headers})
                async for part in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                await answer.aclose()
        except httpx2.HTTPError as error:
            _log.warning("sandbox %s did not answer: %s", host_id, type(error).__name__)
            if has_begun:
                raise AnswerBroken from None
            # A connection that was never made has carried nothing.
            was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise host_lost(was_sent=was_sent) from None


async def _end_with_client(receive: Receive, call: anyio.CancelScope) -> None:
    """Without a client, an answer that has no end must be ended here."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.cancel()


def _unknown(host_id: str) -> BadInput:
    return BadInput(
        f"there is no host {host_id[:60]!r} in the fleet",
        hint="`kubectl get sandboxclaims` shows the sandboxes.",
        code="CW-FLEET-UNKNOWN",
    )
