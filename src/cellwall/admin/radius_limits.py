"""Probes of the limits of a run: a part of the amount is used, then more than the amount."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

from cellwall.admin.ability import Ability
from cellwall.admin.blast_radius import ProbeResult, ProbeState
from cellwall.admin.radius_probes import (
    MAX_WAIT_S,
    SPARE_BYTES,
    LimitProbe,
    Unprobed,
    ending,
    raised_limits,
    trial_code,
)
from cellwall.core.limits import Limits, size_text
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import RunCode
from cellwall.sandbox.governor import HostMemory

_REFUSED = re.compile(r"^(?:[A-Za-z]*Error: \[Errno|MemoryError)", re.MULTILINE)
"""How the kernel's refusal ends a program, unlike a mistake in it."""
_MIN_SHARE, _MAX_SHARE = 0.5, 1.3
"""Of the allowed processors: a busy host gives less, the kernel lends a part of the next period."""
_CLEARLY = 1.1
_MAX_ROUNDS = 3
"""On a busy host, the next round may find free processors."""


class _PerformCode(Protocol):
    """Runs code in a new cell."""

    def __call__(self, code: RunCode, *, limits: Limits) -> Awaitable[Outcome]: ...


class LimitProber:
    """Tries the limits of an app's runs."""

    def __init__(self, usual: Limits, perform: _PerformCode) -> None:
        self._usual, self._perform = usual, perform

    async def exceed(self, line: Ability, probe: LimitProbe) -> ProbeResult:
        amount = line.number
        limits = self._affordable(amount, probe)
        within, beyond = _within(amount, probe), _beyond(amount, probe)
        used = await self._perform(probe.to_code(within), limits=limits)
        if used.status is Status.LIMIT and probe.is_waited_for:
            raise Unprobed("here even an idle run does not end within the limit")
        if used.status is Status.FAILED and not _REFUSED.search(used.stderr):
            raise Unprobed(f"the probe failed: {ending(used)}")
        if used.status is not Status.OK:
            told = f"half of the amount already ended the run: {ending(used)}"
            return ProbeResult(ProbeState.CONTRADICTED, told)
        ended = await self._perform(probe.to_code(beyond), limits=limits)
        told = f"a part of it was used; a run that used more was ended by its {probe.limit} limit"
        if ended.status is Status.FAILED and _REFUSED.search(ended.stderr):
            told = f"a part of it was used; more was refused: {ending(ended)}"
        elif ended.limit is not probe.limit:
            told = f"the limit did not end a run that used more: {ending(ended)}"
            return ProbeResult(ProbeState.CONTRADICTED, told)
        return ProbeResult(ProbeState.CONFIRMED, told)

    def _affordable(self, amount: float, probe: LimitProbe) -> Limits:
        """The limits of the run; raises where the trial costs too much here."""
        limits = raised_limits(self._usual, probe.of)
        if probe.is_waited_for:
            if amount > MAX_WAIT_S:
                raise Unprobed(f"{amount:g} s are not waited for")
            # Time on the clock for a run that may have to share its processor.
            spare_s = limits.wall_s if "wall_s" in probe.of else 10 * amount + MAX_WAIT_S
            return replace(limits, wall_s=spare_s)
        if probe.max_amount is not None and amount > probe.max_amount:
            raise Unprobed("as much is not tried on a host that others use as well")
        if probe.in_memory:
            is_count = "file_count" in probe.of and "disk_bytes" not in probe.of
            needed = SPARE_BYTES + (0 if is_count else int(amount))
            # /dev/shm is bounded by the memory, which could not be raised without raising it too.
            if not probe.of and amount == self._usual.memory_bytes:
                raise Unprobed("it lies in the memory of the run, whose limit is not larger")
            limits = replace(limits, memory_bytes=max(limits.memory_bytes, needed))
        if probe.in_memory or "memory_bytes" in probe.of:
            available = HostMemory().available_bytes() or 0
            if 2 * limits.memory_bytes > available:
                needed_text = size_text(limits.memory_bytes)
                raise Unprobed(f"{needed_text} are more than half of the available memory")
        return limits

    async def spin(self, line: Ability) -> ProbeResult:
        """More busy processes than processors are allowed, under the limit and, as the control,
        under that of the whole host."""
        amount, cores = line.number, len(os.sched_getaffinity(0))
        if cores < amount + 0.5:
            raise Unprobed(f"this host has {cores} processors, no more than a run may use")
        code = trial_code("spin", {"processes": math.ceil(amount) + 1})
        own = raised_limits(self._usual, frozenset({"cpus"}))
        used = most = 0.0
        for _ in range(_MAX_ROUNDS):
            used = _number(await self._perform(code, limits=own))
            most = _number(await self._perform(code, limits=replace(own, cpus=float(cores))))
            if most > _CLEARLY * _MAX_SHARE * amount and used >= _MIN_SHARE * amount:
                break
        # Too little under the limit is no proof against it: other work came in between.
        if most <= _CLEARLY * _MAX_SHARE * amount or used < _MIN_SHARE * amount:
            raise Unprobed(f"this host was busy: a run without the limit had {most:.2g} processors")
        told = (
            f"{math.ceil(amount) + 1} busy processes used {used:.2g}; without the limit {most:.2g}"
        )
        is_right = used <= _MAX_SHARE * amount
        return ProbeResult(ProbeState.CONFIRMED if is_right else ProbeState.CONTRADICTED, told)


def _within(amount: float, probe: LimitProbe) -> float:
    if probe.is_waited_for:
        return min(amount / 4, 0.1)
    return max(int(amount) // 2, 1)


def _beyond(amount: float, probe: LimitProbe) -> float:
    if probe.is_waited_for:
        return 3 * amount + 5
    return int(amount) + max(int(amount) // 4, 64)


def _number(outcome: Outcome) -> float:
    if not isinstance(outcome.value, float):
        raise Unprobed(f"the probe failed: {ending(outcome)}")
    return outcome.value
