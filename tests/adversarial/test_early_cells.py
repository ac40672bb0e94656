"""The cell of a session that is opened before the first action gives nothing away, and leaves
nothing behind, whatever ends the session while the cell is opened (ISO-8)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from adversarial.conftest import end_what_waits, enter_home
from adversarial.leftovers import UID_BASE, alive, groups, left, nothing, recorded
from cellwall.admin.emergency_stop import EmergencyStop
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.snapshots import TakeSnapshot, WorkspaceSnapshot
from cellwall.core.types import Principal, RunCode, RunCommand
from cellwall.interfaces.sdk.hosts import SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from cellwall.sandbox.linux import cgroups, sessions
from cellwall.sandbox.linux.native import NativeSandbox
from conftest import audit_records, need, new_home

ROUNDS = 12
ONE = RunCode("python", b"1 + 1")
PLAIN = SandboxSpec(
    workspace=None,
    allow_domains=(),
    registries=(),
    secrets=(),
    envs={},
    timeout=None,
    memory=None,
    limits={},
    template="python",
    skills=(),
    policy=None,
)
NO_CODE = '[permissions]\nallow = ["Bash(*)", "Write(**)"]\n'


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@pytest.fixture(autouse=True)
def state_home(
    path: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """One for each test on both paths: what is found in it was left by this test."""
    home = new_home(tmp_path_factory)
    yield enter_home(home, path, monkeypatch)
    end_what_waits()
    wiring.close_shared(str(home))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "cellwall.toml"
    file.write_text(f"[sandbox]\nuid_base = {UID_BASE}\n")
    return file


@pytest.fixture
def app(config: Path) -> Iterator[App]:
    found = wiring.open_app(config=str(config))
    yield found
    found.close()


def has_cell(app: App, host: LocalHost) -> bool:
    sandbox = app.runtime.sandbox
    assert isinstance(sandbox, NativeSandbox)
    return sandbox.has_cell(host.id)


@asynccontextmanager
async def made(app: App) -> AsyncIterator[LocalHost]:
    host = await LocalHost.create(app, PLAIN)
    try:
        yield host
    finally:
        await host.end()


async def run(host: LocalHost, operation: Any = ONE) -> Outcome:
    return (await host.perform(operation)).raise_for_status()


def with_host(app: App, use: Callable[[LocalHost], Awaitable[None]], **changes: Any) -> None:
    """Opened early, unless that is refused."""

    async def go() -> None:
        principal = changes.pop("principal", None)
        host = await LocalHost.create(app, replace(PLAIN, **changes), principal=principal)
        try:
            await host.open_early()
            await use(host)
        finally:
            await host.end()

    anyio.run(go)


def is_opened(app: App, **changes: Any) -> bool:
    found = []

    async def look(host: LocalHost) -> None:
        found.append(has_cell(app, host))

    with_host(app, look, **changes)
    return found == [True]


def _workspace_descriptors(home: str) -> int:
    """Descriptors of this process that name a workspace of the state folder, deleted or not."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the list itself
            found += os.readlink(f"/proc/self/fd/{number}").startswith(f"{home}/workspaces/")
    return found


@pytest.mark.requirement("ISO-8")
def test_a_cell_that_no_action_used_leaves_no_descriptor(app: App, state_home: str) -> None:
    """Those that a run reserves for the check after it were closed by that check alone."""

    async def look(host: LocalHost) -> None:
        assert has_cell(app, host)
        assert _workspace_descriptors(state_home) > 0  # the control

    with_host(app, look)
    assert _workspace_descriptors(state_home) == 0


def shapes(session: str) -> list[tuple[str, frozenset[str]]]:
    """The records of a session by kind, and what each of them says."""
    records = audit_records(session_id=session)
    return [(each["kind"], frozenset(each["body"])) for each in records]


@pytest.mark.requirement("AUD-1")
def test_the_first_code_finds_its_cell_and_the_record_is_the_same(app: App) -> None:
    found: dict[str, tuple[str, Outcome, Outcome]] = {}

    async def go() -> None:
        for name in ("early", "as before"):
            async with made(app) as host:
                if name == "early":
                    before = len(shapes(host.id))
                    await host.open_early()
                    assert has_cell(app, host)
                    assert len(shapes(host.id)) == before  # nothing was done, and nothing recorded
                first, second = await run(host, RunCode("python", b"x = 2")), await run(host)
                found[name] = host.id, first, second

    anyio.run(go)
    early, before = found["early"], found["as before"]
    assert shapes(early[0]) == shapes(before[0])
    assert [(each.status, each.value, each.sandbox_path) for each in early[1:]] == [
        (each.status, each.value, each.sandbox_path) for each in before[1:]
    ]


@pytest.mark.requirement("ISO-8")
def test_a_session_that_ends_while_its_cell_is_opened_leaves_nothing(
    app: App, state_home: str
) -> None:
    chance, seen, opened = random.Random(5), set[str](), []

    async def one(delay_s: float) -> None:
        async with made(app) as host, anyio.create_task_group() as tasks:
            tasks.start_soon(host.open_early)
            await anyio.sleep(delay_s)  # the moment; nothing is awaited
            seen.update(recorded(state_home))
            opened.append(has_cell(app, host))
            await host.end()
            assert not has_cell(app, host)
            await host.open_early()  # too late
            assert not has_cell(app, host)

    async def all_of_them() -> None:
        await one(0)
        for _ in range(ROUNDS):
            await one(chance.uniform(0.0, 0.03))
        while not opened[-1]:  # the control: some had their cell
            await one(chance.uniform(0.0, 1.0))

    anyio.run(all_of_them)
    assert left(state_home) == nothing()
    assert groups(seen) == []
    assert alive() == []


@pytest.mark.requirement("ISO-8")
def test_a_creator_that_is_cancelled_while_the_cell_is_opened_leaves_nothing(
    app: App, state_home: str
) -> None:
    """As at the end of the service, which cancels what it does in the background."""

    async def one(delay_s: float) -> None:
        async with made(app) as host:
            with anyio.move_on_after(delay_s):
                await host.open_early()

    async def all_of_them() -> None:
        for each in (0.0, 0.001, 0.002, 0.004, 0.008, 0.03):
            await one(each)

    anyio.run(all_of_them)
    assert left(state_home) == nothing()


@pytest.mark.requirement("POL-1", "RBAC-2")
def test_a_session_whose_code_is_denied_or_asked_about_gets_no_cell(
    app: App, tmp_path: Path
) -> None:
    agent = Principal("agent", "http", "user")
    policies = {}
    for name, text in {
        "allowed": '[permissions]\nallow = ["Code(*)"]\n',
        "commands": NO_CODE,
        "asked": '[permissions]\nask = ["Code(*)"]\n',
        "nothing": "[permissions]\nallow = []\n",
    }.items():
        policies[name] = str(tmp_path / f"{name}.toml")
        Path(policies[name]).write_text(text)
    found = {name: is_opened(app, policy=file, principal=agent) for name, file in policies.items()}
    assert found == {"allowed": True, "commands": False, "asked": False, "nothing": False}
    viewer = Principal("agent", "http", "auditor")
    assert not is_opened(app, policy=policies["allowed"], principal=viewer)


@pytest.mark.requirement("NET-1", "SEC-5")
@pytest.mark.parametrize(
    "changes", [{"allow_domains": ("a.example",)}, {"registries": ("pypi",)}], ids=str
)
def test_a_session_that_leases_more_than_files_gets_its_cell_with_its_first_action(
    app: App, changes: dict[str, Any]
) -> None:
    assert is_opened(app)  # the control
    assert not is_opened(app, **changes)


@pytest.mark.requirement("NET-1")
@pytest.mark.parametrize("is_ready", [True, False])
def test_a_first_action_with_a_network_gets_another_cell(app: App, is_ready: bool) -> None:
    """Its user may have a role that permits configured domains, and the creator none."""
    reach = b"import socket; socket.create_connection(('127.0.0.1', 3128)).close() is None"
    look = RunCode("python", reach)

    async def go() -> list[object]:
        async with made(app) as host:
            wider = replace(host._pattern, allow_domains=("a.example",))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.open_early)
                while is_ready and not has_cell(app, host):
                    await anyio.sleep(0.01)
                await anyio.sleep(0)
                host._pattern = wider
                first = await run(host, look)
            return [first.value, (await run(host, look)).value]

    assert anyio.run(go) == [True, True]


@pytest.mark.requirement("LIM-4")
def test_no_cell_is_opened_early_where_no_place_is_free(config: Path) -> None:
    config.write_text(config.read_text() + "[governor]\nmax_concurrent = 1\n")
    app = wiring.open_app(config=str(config))
    found: list[bool] = []

    async def look(host: LocalHost) -> None:
        found.append(has_cell(app, host))

    async def go() -> None:
        async with made(app) as host:
            async with app.governor.lease(memory_bytes=1):
                with anyio.fail_after(10):  # an action would wait for a place
                    await host.open_early()
                await look(host)
            await host.open_early()
            await look(host)

    anyio.run(go)
    app.close()
    assert found == [False, True]


@pytest.mark.requirement("LIM-4")
def test_an_early_cell_takes_the_only_place_from_no_action(config: Path) -> None:
    config.write_text(config.read_text() + "[governor]\nmax_concurrent = 1\nqueue_timeout_s = 0\n")
    app = wiring.open_app(config=str(config))

    async def go() -> None:
        for _ in range(ROUNDS):
            async with made(app) as host, anyio.create_task_group() as tasks:
                tasks.start_soon(host.open_early)
                await anyio.sleep(0.005)
                assert (await run(host)).value == 2  # not `CW-BUSY`

    anyio.run(go)
    app.close()


@pytest.mark.requirement("OBS-3")
def test_no_cell_is_opened_early_during_an_emergency_stop(app: App, state_home: str) -> None:
    flag = app.runtime.stop

    async def go() -> None:
        async with made(app) as host:
            Path(state_home, "stopped").write_text("{}")
            with pytest.raises(CellwallError):
                flag.check()
            await host.open_early()
            assert not has_cell(app, host)
            Path(state_home, "stopped").unlink()

    anyio.run(go)
    assert left(state_home) == nothing()


@pytest.mark.requirement("OBS-3")
def test_an_emergency_stop_while_a_cell_is_opened_ends_it(app: App, state_home: str) -> None:
    switch = EmergencyStop.configured(Principal("tester", "cli"))
    opened = []

    async def one(delay_s: float) -> None:
        async with made(app) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.open_early)
                await anyio.sleep(delay_s)  # the moment; nothing is awaited
                opened.append(has_cell(app, host))
                await anyio.to_thread.run_sync(partial(switch.stop, reason="a test"))
            assert not has_cell(app, host)
            assert alive() == []
        await anyio.to_thread.run_sync(partial(switch.lift, reason="a test"))

    async def all_of_them() -> None:
        for each in (0.0, 0.001, 0.003, 0.006, 0.012, 0.025, 0.05, 0.1):
            await one(each)
        while not opened[-1]:  # the control: there was one to end
            await one(random.uniform(0.0, 1.0))

    anyio.run(all_of_them)
    assert left(state_home) == nothing()


@pytest.mark.requirement("ISO-8")
def test_a_cell_that_nobody_uses_is_closed_and_one_in_use_is_not(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_UNUSED_S", 0.0)

    async def closed(host: LocalHost) -> None:
        with anyio.fail_after(60):
            while has_cell(app, host):
                await anyio.sleep(0.02)
        assert (await run(host)).value == 2  # in a new cell
        assert has_cell(app, host)
        assert isinstance(app.runtime.sandbox, NativeSandbox)
        app.runtime.sandbox.close_unused(host.id)
        assert has_cell(app, host)  # it was used

    with_host(app, closed)


@pytest.mark.requirement("ISO-8")
def test_code_and_the_end_of_its_unused_cell_at_once_do_not_disturb_each_other(app: App) -> None:
    sandbox = app.runtime.sandbox
    assert isinstance(sandbox, NativeSandbox)

    async def both(host: LocalHost) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, sandbox.close_unused, host.id)
            assert (await run(host)).value == 2

    for _ in range(ROUNDS):
        with_host(app, both)


@pytest.mark.requirement("FS-9")
def test_a_snapshot_at_once_waits_for_the_cell_and_is_not_refused(app: App) -> None:
    async def go() -> None:
        async with made(app) as host:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.open_early)
                await anyio.sleep(0)
                taken = await run(host, TakeSnapshot(end_processes=True))
            assert isinstance(taken.payload, WorkspaceSnapshot)
            assert (await run(host)).value == 2

    anyio.run(go)


@pytest.mark.requirement("ISO-3", "LIM-2")
def test_the_first_action_in_such_a_cell_has_its_variables_and_limits(app: App) -> None:
    async def look(host: LocalHost) -> None:
        code = b"import os; os.environ['COLOUR'], os.getpid() > 1, 'CELLWALL_HOME' in os.environ"
        assert (await run(host, RunCode("python", code))).value == ["blue", True, False]
        ran = await run(host, RunCommand(("sh", "-c", "echo $COLOUR")))
        assert ran.stdout == "blue\n"
        bomb = await host.perform(RunCode("python", b"x = bytearray(200_000_000)"))
        assert str(bomb.limit) == "memory"

    with_host(app, look, envs={"COLOUR": "blue"}, memory="64m")


@pytest.mark.requirement("ISO-8")
def test_a_cell_that_cannot_be_opened_is_left_to_the_first_action(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "no free descriptor")

    async def look(host: LocalHost) -> None:
        assert not has_cell(app, host)
        monkeypatch.undo()
        assert (await run(host)).value == 2

    monkeypatch.setattr(sessions.LiveSessions, "_start_early", fail)
    with_host(app, look)
