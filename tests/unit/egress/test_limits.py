"""What sessions may use up, each by itself and all together."""

from __future__ import annotations

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.limits import ConnectionSlots, EgressSettings, SessionBudget


def entered(budget: SessionBudget, most: int) -> int:
    for count in range(most):
        try:
            budget.enter()
        except EgressRefused:
            return count
    return most


@pytest.mark.requirement("LIM-4", "NET-2")
def test_greedy_sessions_leave_places_for_one_that_has_few() -> None:
    slots, settings = ConnectionSlots(64), EgressSettings(max_connections=100)
    greedy = [SessionBudget(settings, slots) for _ in range(2)]
    assert sum(entered(each, 100) for each in greedy) < 64
    modest = SessionBudget(settings, slots)
    assert entered(modest, 100) == 4
    with pytest.raises(EgressRefused, match="CW-NET-LIMIT"):
        modest.enter()
    greedy[0].leave()
    assert entered(greedy[0], 100) == 0, "the last places are not for those who have many"
    # The control: alone in a crowd with room, a session has all that its own bound allows.
    assert entered(SessionBudget(settings, ConnectionSlots(1000)), 200) == 100


@pytest.mark.requirement("LIM-1", "NET-2")
def test_what_was_sent_ahead_counts_like_what_follows() -> None:
    budget = SessionBudget(EgressSettings(max_upload_bytes=1000), ConnectionSlots(1))
    budget.admit(1000)
    with pytest.raises(EgressRefused, match="CW-NET-LIMIT"):
        budget.admit(1001)
    with pytest.raises(EgressRefused, match="CW-NET-LIMIT"):
        budget.check("up")


@pytest.mark.requirement("NET-2")
def test_a_debt_is_the_sessions_and_is_paid_by_time() -> None:
    now_s = 0.0
    budget = SessionBudget(
        EgressSettings(bytes_per_s=1000), ConnectionSlots(1), clock=lambda: now_s
    )
    assert budget.throttle_delay_s() == 0
    budget.spend("down", 2250)
    assert budget.throttle_delay_s() == pytest.approx(2.0)
    now_s = 2.5
    assert budget.throttle_delay_s() == 0
