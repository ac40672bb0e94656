"""When a supervisor can be reached."""

from __future__ import annotations

from pathlib import Path

import anyio

from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.interfaces.supervisor.server import Supervisor
from cellwall.runtime.app import App
from cellwall.runtime.home import is_running


def serve_until_reached(home: str) -> None:
    async def serve() -> None:
        supervisor = Supervisor(home)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.serve)
            with anyio.fail_after(60):
                while not is_running(home):
                    await anyio.sleep(0.01)
            supervisor.stop()

    anyio.run(serve)


def test_a_supervisor_accepts_clients_once_its_runtime_and_guard_are_loaded(
    state_home, monkeypatch
):
    """A hook waits 1.5 s for an answer: a socket that accepts earlier costs it that time."""
    was_running = []
    take, load = RuntimeCache._take, App.load_guard

    def watched_take(*given):
        was_running.append(is_running(state_home))
        return take(*given)

    def watched_load(app):
        was_running.append(is_running(state_home))
        load(app)

    monkeypatch.setattr(RuntimeCache, "_take", watched_take)
    monkeypatch.setattr(App, "load_guard", watched_load)
    serve_until_reached(state_home)
    assert was_running == [False, False]


def test_a_supervisor_whose_configuration_is_invalid_serves_nevertheless(state_home, monkeypatch):
    """Its clients are told the error, and may name another configuration."""
    broken = Path(state_home, "broken.toml")
    broken.write_text("[no-such-section]\n")
    monkeypatch.setenv("CELLWALL_CONFIG", str(broken))
    serve_until_reached(state_home)
