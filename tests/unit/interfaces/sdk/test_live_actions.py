"""An action that comes when the sandbox has just ended does nothing."""

from __future__ import annotations

import anyio
import pytest

from cellwall.interfaces.sdk.live_actions import LiveActions


@pytest.mark.parametrize("is_over", [False, True])
def test_an_action_that_enters_after_the_end_is_left_before_it_does_anything(
    *, is_over: bool
) -> None:
    live, done = LiveActions(), list[str]()
    if is_over:
        live.end()

    async def act() -> None:
        with live.entered():
            await anyio.to_thread.run_sync(done.append, "done")

    anyio.run(act)
    assert done == ([] if is_over else ["done"])


def test_an_idle_sandbox_ends_without_a_wait_and_a_busy_one_is_left_to_the_thread() -> None:
    live, done = LiveActions(), list[str]()

    async def act() -> None:
        with live.entered():
            assert not live.end_if_idle()  # this action runs, and goes on
            await anyio.to_thread.run_sync(done.append, "first")
        assert live.end_if_idle()
        with live.entered():
            await anyio.to_thread.run_sync(done.append, "second")

    anyio.run(act)
    assert done == ["first"]
