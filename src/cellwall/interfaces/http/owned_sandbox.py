"""A live sandbox of the service, with its owner and its metadata."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Unpack

import anyio

from cellwall.core.limits import Limits
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, Permission, Principal, SetDomains
from cellwall.interfaces.http.runs import Runs
from cellwall.interfaces.sdk.hosts import CallOptions, SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.interfaces.supervisor.codec import Operation


@dataclass(slots=True)
class OwnedSandbox:
    """A live sandbox of one user, which a team may share."""

    host: LocalHost
    owner_id: str
    team_id: str | None
    limits: Limits
    keep_alive_s: float
    runs: Runs
    spec: SandboxSpec
    made_s: float = field(default_factory=time.time)
    used_at: float = field(default_factory=time.monotonic)
    ends_at: float | None = None
    """On the monotonic clock: the end, also while in use. None: `keep_alive_s` without use."""
    busy: int = 0
    writing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a file is written over the API."""
    widening: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while domains are added: of two that are added at once, none is lost."""
    copy_snapshot: Callable[[str], Awaitable[None]] | None = None
    """Copies a snapshot to where other hosts find it, for a session that starts again there."""
    restarted_s: float | None = None
    """The time of the snapshot that it was started again from, after its host was lost."""
    keying: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the idempotency key of a run is stored."""
    at_end: ExitStack = field(default_factory=ExitStack)
    """What other interfaces hold for the sandbox; closed when it has ended."""

    @property
    def id(self) -> str:
        return self.host.id

    @property
    def template(self) -> str:
        return self.spec.template

    @property
    def needs(self) -> frozenset[Permission]:
        """Of its owner's role, for what programs in it have for as long as they run."""
        given = (
            (self.host.domains, Permission.NETWORK_USE),
            (self.spec.registries, Permission.PACKAGES_INSTALL),
            (self.spec.secrets, Permission.SECRETS_USE),
        )
        return frozenset({Permission.SANDBOX_EXECUTE, *(need for thing, need in given if thing)})

    @property
    def ends_in_s(self) -> float:
        end = self.used_at + self.keep_alive_s if self.ends_at is None else self.ends_at
        return max(0.0, end - time.monotonic())

    @property
    def is_overdue(self) -> bool:
        return self.ends_in_s <= 0 and (self.ends_at is not None or not self.busy)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The sandbox is not overdue while the block lasts, and its time begins anew behind it."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used_at = time.monotonic()

    async def perform(
        self, principal: Principal, operation: Operation, **options: Unpack[CallOptions]
    ) -> Outcome:
        """One action of this principal. A call can only lower the limit of time (POL-11)."""
        timeout = options.get("timeout")
        if timeout is not None:
            options["timeout"] = min(timeout, self.limits.wall_s)
        with self.in_use():
            return await self.host.perform(operation, principal=principal, **options)

    async def end_host(self) -> None:
        """End the sandbox itself, and what other interfaces hold for it."""
        with self.at_end:
            await self.host.end()

    async def allow(self, principal: Principal, rules: Sequence[str]) -> Outcome:
        """Add domain rules, by an action that is judged like a run with all of them."""
        async with self.widening:
            domains = tuple(dict.fromkeys((*self.host.domains, *rules)))
            return await self.perform(principal, SetDomains(domains))


def about(sandbox: OwnedSandbox) -> dict[str, Json]:
    """What is kept about a sandbox after its end."""
    return about_spec(sandbox.spec, sandbox.limits)


def about_spec(spec: SandboxSpec, limits: Limits) -> dict[str, Json]:
    """As `about`, of a sandbox that is being made."""
    return {"template": spec.template, "limits": limits_json(limits)}


def limits_json(limits: Limits) -> dict[str, Json]:
    """The limits by name."""
    return {name: getattr(limits, name) for name in limits.__slots__}
