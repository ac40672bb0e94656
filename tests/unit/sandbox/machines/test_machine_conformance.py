"""Cells in real virtual machines pass the conformance suite, as native cells do; and attacks on them.

Without /dev/kvm the machines are emulated: slower, and the same but for the accelerator.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, RunCommand, WorkspaceRequest
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.conformance import CheckResult, checks, run_conformance
from cellwall.sandbox.linux.layers import HostLayers
from cellwall.sandbox.machines.machine_plan import BOARDS
from cellwall.sandbox.machines.machine_walls import gather_machine, judge_machine
from conftest import need
from unit.sandbox.machines.debian_kernel import debian_kernel

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3600)]
WITHIN_S = 300.0
_SLOW_S = 600.0  # an emulated processor: the limits are not what is tried


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A configuration with machines, emulated where this host has no /dev/kvm."""
    facts = gather_machine()
    need(facts.emulator, f"QEMU: apt-get install {BOARDS.get(facts.machine, ('qemu',))[0]}")
    need(HostLayers.detect().cgroup.way != "none", "a cgroup")
    kernel = debian_kernel()
    file = tmp_path_factory.mktemp("machines") / "config.toml"
    lines = ["[sandbox]", 'backend = "kvm"', f'machine_kernel = "{kernel.path}"']
    if not has_kvm():
        lines.append("dangerously_emulate_machines = true")
    file.write_text("\n".join([*lines, "[limits]", "wall_s = 600", "cpu_s = 600", ""]))
    file.chmod(0o600)
    return str(file)


def has_kvm() -> bool:
    settings = wiring.open_app().native
    try:
        judge_machine(replace(settings, dangerously_emulate_machines=False), gather_machine())
    except CellwallError:
        return False
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


def emulators() -> dict[int, str]:
    """The emulators that this test's machines left running: pid -> command."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = (
                Path(f"/proc/{name}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            )
        except OSError:
            continue
        if words[0].startswith("/usr/bin/qemu-system-") and "/initramfs" in words:
            found[int(name)] = words[0]
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.requirement("ISO-11", "ISO-1", "ISO-2", "ISO-7", "LIM-2", "NET-1")
def test_virtual_machines_pass_every_check(config: str) -> None:
    used: set[str] = set()
    before = emulators()

    async def work() -> list[CheckResult]:
        app = wiring.open_app(config=config)

        async def perform(action: Action) -> Outcome:
            outcome = await app.runtime.perform(action)
            used.add(outcome.sandbox_path)
            return outcome

        with app.session(WorkspaceRequest(), local_principal("sdk")) as session_id:
            return await run_conformance(
                perform,
                principal=local_principal("sdk"),
                session_id=session_id,
                limits=app.limits,
                backend="kvm",
            )

    results = anyio.run(work)
    assert [result for result in results if not result.passed] == []
    assert [result.name for result in results if result.lack] == []
    assert len(results) == len(checks())
    assert used == {"machine"}
    wait_until(lambda: emulators().keys() <= before.keys())


LEAVE = """
import os, stat
os.symlink("/etc/shadow", "/workspace/shadow")
os.symlink("../../../../../../../../etc/passwd", "/workspace/up")
os.symlink("/proc/1/root", "/workspace/root")
open("/workspace/plain", "w").write("of the code")
found = []
for name in ("shadow", "root/etc/shadow"):
    try: found.append(open("/workspace/" + name).read())
    except OSError as error: found.append(type(error).__name__)
try: os.chmod("/workspace/plain", 0o4755)
except OSError as error: found.append(type(error).__name__)
found.append([name for name in os.listdir("/dev") if name.startswith(("vport", "kvm", "hvc"))])
found.append(open("/workspace/up").read().count("root:x:0:0"))
found
"""


@pytest.mark.requirement("ISO-2", "ISO-11", "FS-1")
def test_a_live_machine_has_files_commands_and_state_and_its_links_lead_nowhere(
    config: str,
) -> None:
    with cellwall.Sandbox.create(config=config, timeout=_SLOW_S) as sandbox:
        sandbox.files.write("given.txt", "of the host")
        ran = sandbox.commands.run("cat given.txt; echo new > made.txt; echo err >&2; exit 4")
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("of the host", "err\n", 4)
        assert sandbox.files.read("made.txt") == "new\n"
        sandbox.run_code("x = 20")
        assert sandbox.run_code("x + 1").value == 21
        # A file that the host changes is not shown as it was.
        sandbox.files.write("given.txt", "changed by the host")
        assert sandbox.commands.run("cat given.txt").stdout == "changed by the host"
        # Inside, links are followed by the kernel of the machine: to the files of the cell.
        found = sandbox.run_code(LEAVE).value
        assert set(found[:2]) <= {"FileNotFoundError", "PermissionError"}
        assert found[2:] == ["PermissionError", [], 1]
        # From outside, the file API follows none of them. The control: it reads a plain file.
        assert sandbox.files.read("plain") == "of the code"
        for name in ("shadow", "up", "root/etc/passwd"):
            with pytest.raises(CellwallError):
                sandbox.files.read(name)
        # What the machine cannot hand out is refused, and the sandbox goes on.
        with pytest.raises(CellwallError) as refused:
            sandbox.files.read("/tmp/x")
        assert refused.value.code == "CW-SANDBOX-CLOSED"
        assert sandbox.run_code("x").value == 20
        flood = sandbox.commands.run("cat /dev/zero | head -c 9000000")
        assert (flood.status, flood.limit) == ("limit", "output")
        assert sandbox.commands.run("echo on").stdout == "on\n"


def run_in_thread(config: str, argv: tuple[str, ...], during: Callable[[int], None]) -> Outcome:
    """Run a command; `during` gets the emulator's pid once the command has printed."""
    app = wiring.open_app(config=config)
    before, called = emulators(), []

    def sink(name: str, chunk: bytes) -> None:
        if not called:
            called.append(1)
            (new,) = emulators().keys() - before.keys()
            during(new)

    action = Action(principal=local_principal("sdk"), operation=RunCommand(argv), limits=app.limits)
    try:
        return anyio.run(lambda: app.runtime.perform(action, sink=sink))
    finally:
        assert called
        assert not app.ledger.live()
        app.close()


def groups_of(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    names = [line.rpartition(":")[2] for line in lines]
    return [name for name in names if "cellwall" in name]


def exists(group: str) -> bool:
    return any(
        Path(place + group).exists()
        for place in ("/sys/fs/cgroup", *map(str, Path("/sys/fs/cgroup").iterdir()))
    )


@pytest.mark.requirement("ISO-8", "ISO-11", "ERR-2")
def test_an_emulator_that_is_killed_is_an_error_and_leaves_nothing(config: str) -> None:
    groups: list[str] = []
    pids: list[int] = []

    def kill(pid: int) -> None:
        groups.extend(groups_of(pid))
        pids.append(pid)
        assert groups
        assert all(map(exists, groups))  # the control
        uids = Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[:4]
        assert "0" not in uids  # the emulator is no root of the host
        os.kill(pid, signal.SIGKILL)

    outcome = run_in_thread(config, ("sh", "-c", "echo on; exec sleep 1000"), kill)
    assert (outcome.status, outcome.exit_code) == (Status.ERROR, None)
    assert pids[0] not in emulators()
    assert not any(map(exists, groups))


@pytest.mark.requirement("ISO-8", "ISO-11")
def test_a_killed_supervisor_leaves_no_machine(config: str) -> None:
    before = emulators()
    code = (
        "import anyio, sys\nfrom cellwall.runtime import wiring\n"
        "from cellwall.runtime.home import local_principal\n"
        "from cellwall.core.types import Action, RunCommand\n"
        "app = wiring.open_app(config=sys.argv[1])\n"
        "def told(name, chunk): print('started', flush=True)\n"
        "action = Action(principal=local_principal('sdk'), limits=app.limits,\n"
        "    operation=RunCommand(('sh', '-c', 'echo; sleep 2000')))\n"
        "anyio.run(lambda: app.runtime.perform(action, sink=told))\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, config], stdout=subprocess.PIPE)
    try:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"started\n"
        (machine,) = emulators().keys() - before.keys()  # the control
        groups = groups_of(machine)
        assert groups
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        supervisor.stdout.close()
    wait_until(lambda: emulators().keys() <= before.keys() and not any(map(exists, groups)))


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_a_kernel_that_does_not_boot_is_an_error_with_a_hint(config: str, tmp_path: Path) -> None:
    """And the run is not carried out in any other way."""
    prefix = tmp_path / "boot"
    prefix.mkdir()
    text = Path(config).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("machine_kernel")]
    kernel = Path(line.split('"')[1])
    modules = kernel.parents[1] / "lib/modules" / kernel.name.removeprefix("vmlinuz-")
    (tmp_path / "lib/modules").mkdir(parents=True)
    (tmp_path / "lib/modules" / modules.name).symlink_to(modules)
    (prefix / kernel.name).write_bytes(b"no kernel" * 1000)
    broken = tmp_path / "config.toml"
    broken.write_text(text.replace(str(kernel), str(prefix / kernel.name)))
    broken.chmod(0o600)
    ran = cellwall.run_command("true", config=str(broken))
    assert ran.refusal is not None
    assert (ran.refusal.code, bool(ran.refusal.hint)) == ("CW-MACHINE-BOOT", True)
