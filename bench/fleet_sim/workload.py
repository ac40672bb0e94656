"""The sessions of a day: when they begin, how long they last, what they take. Seeded."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from fleet_sim.parameters import Parameters

DAY_S = 86_400.0
WARM_UP_S = 3 * 3600.0
"""Before the day that is counted: the fleet does not begin empty."""
BUSIEST_S = WARM_UP_S + DAY_S / 2


@dataclass(slots=True)
class SessionDemand:
    """One session as its user wants it."""

    begins_s: float
    lasts_s: float
    memory_bytes: int
    template: int


def demands(parameters: Parameters) -> list[SessionDemand]:
    """In the order of their beginning; as many in the counted day as the parameters say."""
    chance = random.Random(f"{parameters.seed} demands")  # a simulation
    wanted = round(parameters.sessions_a_day * (DAY_S + WARM_UP_S) / DAY_S)
    begins = sorted(_arrival(chance, parameters) for _ in range(wanted))
    weights = [1 / (rank + 1) for rank in range(parameters.templates)]
    templates = chance.choices(range(parameters.templates), weights, k=wanted)
    return [
        SessionDemand(
            begins_s=begin_s,
            lasts_s=min(_spread(chance, p.session_median_s, p.session_sigma), p.session_max_s),
            memory_bytes=int(
                min(_spread(chance, p.memory_median_bytes, p.memory_sigma), p.memory_max_bytes)
            ),
            template=template,
        )
        for p in (parameters,)
        for begin_s, template in zip(begins, templates, strict=True)
    ]


def rate_over_mean(at_s: float, parameters: Parameters) -> float:
    """A sine over the day, the busiest time in the middle of the counted one."""
    return 1 + (parameters.peak_over_mean - 1) * math.cos((at_s - BUSIEST_S) / DAY_S * math.tau)


def _arrival(chance: random.Random, parameters: Parameters) -> float:
    while True:
        at_s = chance.uniform(0, WARM_UP_S + DAY_S)
        if chance.random() * parameters.peak_over_mean <= rate_over_mean(at_s, parameters):
            return at_s


def _spread(chance: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(chance.gauss(0, sigma))


def count_runs(chance: random.Random, parameters: Parameters) -> int:
    """The runs of one session, by Poisson's law."""
    count, left = 0, chance.expovariate(1.0)
    while left < parameters.runs_a_session:
        count += 1
        left += chance.expovariate(1.0)
    return count
