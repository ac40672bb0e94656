"""The layers themselves, as the kernel shows them from inside and from the host (ISO-1, ISO-10)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import ORDINARY_UID, WHO, given, run_as, source
from conftest import need

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
Facts = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def facts() -> Callable[[str], Facts]:
    known: dict[tuple[str, str], Facts] = {}

    def look(who: str) -> Facts:
        key = who, os.environ["CELLWALL_PATH"]
        if key not in known:
            variables = given(namespaces=NAMESPACES)
            if who == "outside":
                command = [sys.executable, "-I", "-c", source("facts")]
                text = subprocess.run(
                    command, env=variables, capture_output=True, check=True
                ).stdout
            else:
                ran = run_as(who, source("facts"), {"envs": variables})
                assert (ran["status"], ran["path"]) == ("ok", key[1]), ran
                text = str(ran["stdout"]).encode()
            known[key] = json.loads(text)
        return known[key]

    return look


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", NAMESPACES)
def test_namespace_is_not_the_hosts(name: str, who: str, facts: Callable[[str], Facts]) -> None:
    outside = facts("outside")["namespaces"][name]
    assert outside == os.readlink(f"/proc/self/ns/{name}"), "a plain child shares ours"
    assert facts(who)["namespaces"][name] != outside


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_no_capability_is_left(name: str, who: str, facts: Callable[[str], Facts]) -> None:
    assert int(facts("outside")["status"]["CapBnd"][0], 16) != 0, "outside, some could be had"
    assert int(facts(who)["status"][name][0], 16) == 0


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("who", WHO)
def test_no_new_privileges_and_seccomp_are_on(who: str, facts: Callable[[str], Facts]) -> None:
    def walls(place: str) -> dict[str, object]:
        return {name: facts(place)["status"][name] for name in ("NoNewPrivs", "Seccomp", "Groups")}

    assert walls("outside")["NoNewPrivs"] == ["0"]
    assert walls("outside")["Seccomp"] == ["0"]
    assert walls(who) == {"NoNewPrivs": ["1"], "Seccomp": ["2"], "Groups": []}


@pytest.mark.requirement("ISO-1", "ISO-10")
@pytest.mark.parametrize("who", WHO)
def test_the_only_mapped_id_is_unprivileged_on_the_host(
    who: str, facts: Callable[[str], Facts]
) -> None:
    # Inside, a warm cell sees only that its namespace lies in another one: the host is asked.
    name = f"cw{secrets.token_hex(6)}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_as, who, _NAMED.format(name=name), {"timeout": 60})
        maps, status = _maps_of(name, running)
        ran = running.result(90)
    assert (ran["status"], ran["path"]) == ("ok", os.environ["CELLWALL_PATH"]), ran
    for kind in ("uid", "gid"):
        inside, on_host, count = maps[kind]
        assert (inside, count) == (1000, 1)
        if who == "as-root":
            assert on_host >= 65_536
        elif os.geteuid() == 0:
            assert on_host == ORDINARY_UID
        assert status[kind] == [on_host] * 4
        inside, _, count = (int(word) for word in facts(who)[f"{kind}_map"])
        assert (inside, count) == (1000, 1)
    assert facts(who)["status"]["Uid"] == ["1000"] * 4
    assert facts(who)["status"]["Gid"] == ["1000"] * 4


_NAMED = """
import ctypes, signal
assert ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0) == 0  # PR_SET_NAME
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
assert signal.sigtimedwait([signal.SIGTERM], 60) is not None  # it has been looked at
"""


def _maps_of(name: str, running: Future[dict[str, object]]) -> tuple[dict[str, list[int]], ...]:
    """Of the process that calls itself so: its maps and ids, as the kernel tells the host."""
    word = name.encode()  # others on this machine may have names that are no text
    while not running.done():
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or (entry / "comm").read_bytes() != b"%s\n" % word:
                    continue
                maps = {kind: (entry / f"{kind}_map").read_text() for kind in ("uid", "gid")}
                lines = (entry / "status").read_text().splitlines()
                status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                ids = {"uid": status["Uid"], "gid": status["Gid"]}
                os.kill(int(entry.name), signal.SIGTERM)
                return tuple(
                    {kind: [*map(int, text.split())] for kind, text in found.items()}
                    for found in (maps, ids)
                )
    pytest.fail(f"it was never there: {running.result()}")


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("who", WHO)
def test_name_and_cgroup_of_the_host_are_not_told(who: str, facts: Callable[[str], Facts]) -> None:
    assert facts(who)["hostname"] == "cellwall" != facts("outside")["hostname"]
    if who == "as-root":
        assert facts(who)["cgroup"] == ["/"]


def _host_view(mark: str) -> list[dict[str, list[str]]]:
    """Every process on the host with the mark on its command line, as the host's /proc shows it."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                lines = (entry / "status").read_text().splitlines()
                parts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                found.append(
                    {name: parts[name].split() for name in ("Uid", "Gid", "CapEff", "NSpid")}
                )
    return found


@pytest.mark.requirement("ISO-10")
def test_started_by_root_the_payload_has_an_unprivileged_uid_on_the_host() -> None:
    need(os.geteuid() == 0, "root")
    mark = f"cellwall-payload-{os.getpid()}"
    ready = threading.Event()
    program = "import signal; print(1, flush=True); signal.sigtimedwait([signal.SIGTERM], 2)"
    with cellwall.Sandbox.create(timeout=30) as sandbox, ThreadPoolExecutor(1) as pool:
        command = ["python3", "-c", program, mark]
        running = pool.submit(sandbox.commands.run, command, on_stdout=lambda _: ready.set())
        assert ready.wait(20)
        control = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert control.stdout is not None
        control.stdout.readline()
        views = _host_view(mark)
        control.kill()
        control.wait()
        control.stdout.close()
        inside = [view for view in views if len(view["NSpid"]) > 1]
        outside = [view for view in views if len(view["NSpid"]) == 1]
        assert [view["Uid"] for view in outside] == [["0"] * 4], "a plain child of root is root"
        assert len(inside) == 1
        (view,) = inside
        assert len(set(view["Uid"] + view["Gid"])) == 1
        assert int(view["Uid"][0]) >= 65_536
        assert int(view["CapEff"][0], 16) == 0
        running.result(30)
