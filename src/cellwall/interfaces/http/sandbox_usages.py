"""CPU and memory of the live sandboxes over the last minutes, sampled while a page is open."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.runtime.wiring import App

_EVERY_S = 1.0
_SAMPLES = 60


@dataclass(slots=True)
class UsageHistory:
    """The samples of one sandbox, the newest last."""

    cpu: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """The share of one processor since the sample before."""
    memory: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    at: float = 0.0
    cpu_s: float | None = None

    def add(self, cpu_s: float, memory_bytes: int | None, now: float) -> None:
        if self.cpu_s is not None and now > self.at:
            self.cpu.append(max(0.0, cpu_s - self.cpu_s) / (now - self.at))
        self.memory.append(memory_bytes or 0)
        self.at, self.cpu_s = now, cpu_s


class SandboxUsages:
    """Samples of all live sandboxes. However many look, each is sampled once a second."""

    def __init__(self, app: App, sandboxes: OwnedSandboxes) -> None:
        self._app, self._sandboxes = app, sandboxes
        self._known: dict[str, UsageHistory] = {}
        self._sampled_at = 0.0

    def sample(self) -> None:
        """Read the counters of each sandbox, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._sampled_at < _EVERY_S:
            return
        self._sampled_at = now
        live = {each.id for each in self._sandboxes.all()}
        self._known = {name: known for name, known in self._known.items() if name in live}
        for name in live:
            usage = self._app.runtime.sandbox.live_usage(name)
            history = self._known.setdefault(name, UsageHistory())
            history.add(usage.cpu_s, usage.memory_bytes, now)

    def of(self, sandbox_id: str) -> UsageHistory:
        """The samples of one sandbox; empty before the first."""
        return self._known.get(sandbox_id) or UsageHistory()
