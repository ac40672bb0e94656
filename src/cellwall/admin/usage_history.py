"""CPU and memory of live sandboxes over the last minute, for those who watch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

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


class UsageHistories:
    """Samples of all live sandboxes. However many look, each is sampled once a second."""

    def __init__(self) -> None:
        self._known: dict[str, UsageHistory] = {}
        self._sampled_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the last samples are a second old."""
        return time.monotonic() - self._sampled_at >= _EVERY_S

    def add(self, usages: Mapping[str, tuple[float, int | None]]) -> None:
        """CPU seconds and bytes of memory by sandbox; those of others are forgotten."""
        now = self._sampled_at = time.monotonic()
        self._known = {name: known for name, known in self._known.items() if name in usages}
        for name, (cpu_s, memory_bytes) in usages.items():
            self._known.setdefault(name, UsageHistory()).add(cpu_s, memory_bytes, now)

    def of(self, sandbox_id: str) -> UsageHistory:
        """The samples of one sandbox; empty before the first."""
        return self._known.get(sandbox_id) or UsageHistory()
