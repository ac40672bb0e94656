"""The port of the fleet, behind which an engine places sessions and carries requests.

A request crosses as the messages of ASGI (plain dicts, texts, bytes and numbers), never as an
object of ours: the host that gets it checks the credentials of the caller by itself, and each
action goes through the steps of that host's runtime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cellwall.core.errors import Busy, CellwallError
from cellwall.core.hosts import Held

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host, as it told a moment ago."""

    id: str
    incarnation: str
    version: str = ""
    policy_version: int = 0
    """Of the policy that was published for all hosts; 0: it has none."""
    problem: str = ""
    """The code of why it refuses requests; empty: it serves."""
    address: str = ""
    """Of its machine, for people."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Such as `region`, `gpu` or `tenant`; a session may ask for some of them."""
    memory_free_bytes: int = 0
    memory_bytes: int = 0
    sessions: int = 0
    busy: int = 0
    """Sessions with a run under way."""
    keeps_vault: bool = False
    """Whether it lends secrets to the other hosts."""
    templates: frozenset[str] = frozenset()
    """Those that are warm: a session of another one waits until it is prepared."""
    unseen_s: float = 0.0
    is_draining: bool = False
    is_lost: bool = False

    @property
    def takes_sessions(self) -> bool:
        return not self.is_draining and not self.is_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a new session needs of its host."""

    memory_bytes: int = 0
    template: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    host_id: str = ""
    """Only this host: it has the snapshot or the kept files."""
    avoided: frozenset[str] = frozenset()
    """Hosts that have refused the session a moment ago."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session or a question is."""

    host_id: str
    is_lost: bool
    """Its host is gone, or it ended with its host."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """That its next host must have, where it may start again."""


class FleetPort(Protocol):
    """The hosts of one service, and the way to each of them."""

    is_claiming: bool
    """A new session takes a host for itself: it is placed for known callers alone."""

    async def place(self, wish: Wish) -> str:
        """The host for a new session; raises `Busy` where none fits."""

    async def standby(self) -> str:
        """A host for requests about no session, while none is known; raises `Busy`."""

    async def release(self, host_id: str) -> None:
        """The session that was placed there has not begun."""

    async def find(self, kind: Held, name: str) -> Place | None:
        """Where something is; None for an unknown name."""

    async def call(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the host answer one request or WebSocket. Raises `HostLost` before the first message
        of the answer, or `AnswerBroken` behind it; nothing is ever sent twice."""

    async def list(self) -> tuple[HostState, ...]:
        """All hosts, by id; lost ones for a while."""

    async def lost(self) -> tuple[str, ...]:
        """The hosts that do not answer any more."""

    async def drain(self, host_id: str, *, is_draining: bool = True) -> None:
        """Place no new session there. Raises `BadInput` for an unknown host."""

    async def remove(self, host_id: str) -> None:
        """End a host with its sessions, or forget one that is lost."""


class HostPeers(Protocol):
    """The way of one host to another."""

    async def ask(self, host_id: str, incarnation: str, question: bytes) -> bytes:
        """What the other host answers; raises `Busy` if it does not."""


class HostLost(CellwallError):
    """The host that has the session is gone; its sessions have ended with it."""

    default_code = "CW-HOST-LOST"
    was_sent = False
    """Whether the host got the request, which may have been executed then."""


class AnswerBroken(Exception):
    """The host was lost in the middle of an answer: the connection can only be closed."""


def host_lost(*, was_sent: bool = False) -> HostLost:
    """For a session whose host is gone; `was_sent`: the request may have been executed."""
    if was_sent:
        found = HostLost(
            "the host was lost while it handled this request, which may have been executed",
            hint="Look for it in the record before you send it again, in a new session.",
        )
        found.was_sent = True
        return found
    return HostLost(
        "the host of this session was lost, and the session ended with it",
        hint="Create a new session, from its last snapshot if there is one on another host.",
    )


def call_failed(*, was_sent: bool = True) -> Busy:
    """The engine has failed, and the host is there."""
    if was_sent:
        message = "the host of this request could not be asked, or its answer was lost"
        hint = "The request may have been executed: look for it in the record, and send it again."
    else:
        message = "the host of this request could not be asked"
        hint = "Try again in a moment: the request was not executed."
    return Busy(message, hint=hint, code="CW-HOST-UNREACHABLE")


def no_host(reason: str) -> Busy:
    """For a new session that fits nowhere."""
    return Busy(
        f"no host of the fleet can take this session: {reason}",
        hint="Try again in a moment; `cellwall fleet status` shows the hosts.",
        code="CW-FLEET-FULL",
    )
