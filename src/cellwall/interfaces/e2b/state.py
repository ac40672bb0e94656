"""What the E2B endpoints know about sandboxes: metadata, tokens, processes, watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
import anyio.abc
from starlette.requests import Request

from cellwall.interfaces.e2b.creations import Creations
from cellwall.interfaces.e2b.tokens import SandboxTokens
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.sdk.hosts import SandboxSpec

if TYPE_CHECKING:
    from cellwall.interfaces.e2b.processes import StreamedProcess
    from cellwall.interfaces.e2b.watchers import PolledWatch


@dataclass(slots=True)
class CodeContext:
    """Variables of code apart from those of other contexts."""

    id: str
    cwd: str
    name: str
    """In the sandbox; empty for the first one."""
    language: str = "python"


@dataclass(slots=True)
class SandboxFacts:
    """One sandbox, as E2B describes it."""

    state: E2bState
    public_id: str
    """The id that clients use; that of the first session, also after a pause."""
    template: str = "base"
    metadata: Mapping[str, str] = field(default_factory=dict)
    spec: SandboxSpec | None = None
    """Variables and egress of a session that resumes it; None: made by another interface."""
    processes: dict[int, StreamedProcess] = field(default_factory=dict)
    """By the id of the process, which is its PID to clients; ended ones until the next start."""
    watches: dict[str, PolledWatch] = field(default_factory=dict)
    executions: int = 0
    contexts: dict[str, CodeContext] = field(default_factory=dict)
    """Those that clients have made; the default one is always there."""

    def close(self) -> None:
        """With the sandbox: watches hold descriptors."""
        for watch in self.watches.values():
            watch.close()
        self.watches.clear()
        for process in self.processes.values():
            process.forget()
        self.processes.clear()


class E2bState:
    """Of one service. `tasks` ends with the service."""

    def __init__(self, sandboxes: OwnedSandboxes, tasks: anyio.abc.TaskGroup) -> None:
        self.tokens = SandboxTokens()
        self.creations = Creations()
        self.tasks = tasks
        self._sandboxes = sandboxes
        self._facts: dict[str, SandboxFacts] = {}
        """By the id of the session."""
        self._sessions: dict[str, str] = {}
        """The session of a public id, where a pause has changed it."""
        self._resuming: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def session_id(self, public_id: str) -> str:
        """No check of ownership: `OwnedSandboxes.find` does that with the result."""
        return self._sessions.get(public_id, public_id)

    def resuming(self, user_id: str) -> anyio.Lock:
        """Held by one request of a user that may resume a sandbox."""
        return self._resuming.setdefault(user_id, anyio.Lock())

    def facts_of(self, sandbox: OwnedSandbox) -> SandboxFacts:
        """Also for a sandbox that another interface has made."""
        if len(self._facts) > _MAX_FACTS:
            self._forget_ended()
        found = self._facts.get(sandbox.id)
        if found is None:
            found = self._facts[sandbox.id] = SandboxFacts(self, sandbox.id)
            sandbox.at_end.callback(found.close)
        return found

    def add(
        self,
        sandbox: OwnedSandbox,
        *,
        public_id: str,
        template: str,
        metadata: Mapping[str, str],
        spec: SandboxSpec | None = None,
    ) -> SandboxFacts:
        """A new sandbox, or the new session of a resumed one."""
        self._forget_ended()
        if public_id != sandbox.id:
            self._sessions[public_id] = sandbox.id
        made = SandboxFacts(self, public_id, template=template, metadata=dict(metadata), spec=spec)
        self._facts[sandbox.id] = made
        sandbox.at_end.callback(made.close)
        return made

    def known(self, session_id: str) -> SandboxFacts | None:
        """What is known of a session, also of one that was paused."""
        return self._facts.get(session_id)

    def _forget_ended(self) -> None:
        """Those of a paused sandbox are kept for its metadata, up to a number."""
        has_many = len(self._facts) > _MAX_FACTS
        if not has_many and not self.tokens.has_many:
            return
        live = frozenset(each.id for each in self._sandboxes.all())
        self.tokens.forget_ended(live | {each.public_id for each in self._facts.values()})
        if has_many:
            self._facts = {name: each for name, each in self._facts.items() if name in live}
            self._sessions = {
                public: name for public, name in self._sessions.items() if name in live
            }


_MAX_FACTS = 2000


def extend_lifetime(sandbox: OwnedSandbox, lifetime_s: float) -> None:
    """E2B's timeout is a time from now, whether the sandbox is in use or not."""
    sandbox.ends_at = time.monotonic() + lifetime_s


def state_of(request: Request) -> E2bState:
    """Set while the application runs."""
    found: E2bState = request.app.state.e2b
    return found
