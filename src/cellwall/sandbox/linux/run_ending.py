"""How long the end of a killed run is waited for, before a process of it counts as stuck (ISO-8).

A killed process needs a processor to take itself apart, and init needs one to report. On a host
where cells get little of it, a clean end takes as long as a process that hangs in the kernel would
be waited for. So time counts only
  (1) while this process itself runs: a suspended machine or supervisor has not looked, and
  (2) while nothing of the run moves: no process has used processor time or ended since the last
      look, and none waits for a processor.
A process in uninterruptible sleep shows none of these signs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from cellwall.sandbox.files.descriptors import closing_fd

STUCK_S = 20.0
_MAX_S = 120.0
"""A process that loops in the kernel uses processor time for ever."""
_LOOK_EVERY_S = 1.0
_MAX_GAP_S = 0.25
"""Five times the pause between two calls; a longer one is a pause of this process."""
_MAX_STATES = 256
_MAX_STAT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LifeSigns:
    """What of a run's processes is seen from outside."""

    cpu_s: float | None = None
    pids: frozenset[int] = frozenset()
    is_runnable: bool = False
    """A process of the run runs, or waits for a processor."""


class EndingPatience:
    """Of one run, from the moment at which it was killed."""

    def __init__(self, now_s: float) -> None:
        self._called_at_s = now_s
        self._waited_s = self._still_s = 0.0
        self._next_look_s = _LOOK_EVERY_S
        self._seen: LifeSigns | None = None

    @property
    def wants_signs(self) -> bool:
        """Reading them takes time; most runs end before the first look."""
        return self._waited_s >= self._next_look_s

    def is_over(self, now_s: float, signs: LifeSigns | None = None) -> bool:
        """To be called again and again; `signs` when `wants_signs`."""
        passed_s = min(now_s - self._called_at_s, _MAX_GAP_S)  # (1)
        self._called_at_s = now_s
        self._waited_s += passed_s
        self._still_s += passed_s
        if signs is not None:
            if signs.is_runnable or (self._seen is not None and signs != self._seen):  # (2)
                self._still_s = 0.0
            self._seen = signs
            self._next_look_s = self._waited_s + _LOOK_EVERY_S
        return self._still_s >= STUCK_S or self._waited_s >= _MAX_S


def life_signs(pids: Iterable[int], cpu_s: float | None) -> LifeSigns:
    """`pids`: of all processes of the run, as its cgroup lists them."""
    listed = frozenset(pid for pid in pids if pid > 0)  # 0 is outside of our PID namespace
    is_runnable = any(_state(pid) == "R" for pid in sorted(listed)[:_MAX_STATES])
    return LifeSigns(cpu_s, listed, is_runnable)


def _state(pid: int) -> str:
    """By proc_pid_stat(5); empty if it has ended."""
    try:
        with closing_fd(os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            text = os.read(descriptor, _MAX_STAT_BYTES)
    except OSError:
        return ""
    fields = text.rpartition(b")")[2].split()
    return fields[0].decode("ascii", "replace") if fields else ""
