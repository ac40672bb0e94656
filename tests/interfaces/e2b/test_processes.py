"""The unmodified E2B SDK: background commands, standard input, signals, terminals and watches."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from e2b import AsyncSandbox, NotFoundException, PtySize, SandboxException, TimeoutException
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from e2b_code_interpreter import Sandbox

from interfaces.e2b.conftest import options
from interfaces.http.running_service import RunningService

pytestmark = pytest.mark.requirement("INT-2")


def test_background_command_is_listed_and_killed(sandbox: Sandbox):
    handle = sandbox.commands.run("echo begun; sleep 600", background=True)
    found = {each.pid: each for each in sandbox.commands.list()}
    assert found[handle.pid].args == ["-l", "-c", "echo begun; sleep 600"]
    assert next(iter(handle)) == ("begun\n", None, None)
    assert handle.kill()
    with pytest.raises(SandboxException, match="code 137"):
        handle.wait()
    assert not sandbox.commands.kill(handle.pid)
    assert handle.pid not in {each.pid for each in sandbox.commands.list()}
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(handle.pid)


def test_standard_input_is_sent_and_closed(sandbox: Sandbox):
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    sandbox.commands.stream_input(handle.pid, iter(["two\n", "three\n"]))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\nthree\nend\n"


def test_command_without_standard_input_reads_its_end_at_once(sandbox: Sandbox):
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"


def test_second_client_sees_the_same_output(service: RunningService, sandbox: Sandbox):
    handle = sandbox.commands.run("read line; echo $line", background=True, stdin=True)
    other = Sandbox.connect(sandbox.sandbox_id, **options(service)).commands.connect(handle.pid)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.wait)
        sandbox.commands.send_stdin(handle.pid, "both\n")
        assert other.wait().stdout == "both\n"
        assert waiting.result().stdout == "both\n"


def test_command_outlives_its_connection(sandbox: Sandbox):
    handle = sandbox.commands.run("read line; echo $line", background=True, stdin=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "later\n")
    assert again.wait().stdout == "later\n"


def test_command_ends_at_its_timeout(sandbox: Sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 611", timeout=0.5)
    # The program is ended at the same moment, not by this list.
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(_until_gone, sandbox, "sleep 611")


async def _until_gone(sandbox: Sandbox, command: str) -> None:
    with anyio.fail_after(30):
        while any(command in each.args for each in sandbox.commands.list()):
            await anyio.sleep(0.05)


def test_terminal_has_a_size_that_changes(sandbox: Sandbox):
    handle = sandbox.pty.create(PtySize(rows=30, cols=100), timeout=60)
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=120))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit\n")
    shown = bytearray()
    handle.wait(on_pty=shown.extend)
    assert b"40 120" in shown


def test_watch_tells_new_changed_moved_and_removed_files(sandbox: Sandbox):
    sandbox.files.make_dir("watched/inner")
    watch = sandbox.files.watch_dir("watched", recursive=True, include_entry=True)
    sandbox.files.write("watched/inner/a", "1")
    sandbox.files.rename("watched/inner/a", "watched/b")
    sandbox.files.remove("watched/b")
    found: list[tuple[str, FilesystemEventType]] = []
    for _ in range(200):
        found += [(each.name, each.type) for each in watch.get_new_events()]
        if ("b", FilesystemEventType.REMOVE) in found:
            break
    assert ("inner/a", FilesystemEventType.CREATE) in found
    assert ("b", FilesystemEventType.CREATE) in found
    assert ("b", FilesystemEventType.REMOVE) in found
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()
    sandbox.files.remove("watched")


def test_watch_of_an_ended_sandbox_keeps_no_descriptor(service: RunningService):
    def watches() -> int:
        """The service runs in this process."""
        links = Path("/proc/self/fd").iterdir()
        return sum(
            os.path.basename(os.path.realpath(each)) == "anon_inode:inotify" for each in links
        )

    before = watches()
    with Sandbox.create(**options(service)) as ended:
        ended.files.watch_dir(".")
        assert watches() == before + 1
    with Sandbox.create(**options(service)):
        assert watches() == before


def test_async_sdk_runs_commands_and_streams_changes(service: RunningService):
    async def use() -> None:
        sandbox = await AsyncSandbox.create(timeout=100, **options(service))
        seen = anyio.Event()
        try:
            await sandbox.files.make_dir("watched")
            watch = await sandbox.files.watch_dir("watched", on_event=lambda _: seen.set())
            done = await sandbox.commands.run("echo hi > watched/a; echo done")
            assert done.stdout == "done\n"
            with anyio.fail_after(30):
                await seen.wait()
            await watch.stop()
        finally:
            await sandbox.kill()

    anyio.run(use)
