"""An engine that hangs, ends or answers nonsense is an error with a code, whatever it sends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cellwall.core.errors import LayerMissing, SandboxFailed
from cellwall.sandbox.containers import engine as engine_module
from cellwall.sandbox.containers.container_cell import check_own_kernel
from cellwall.sandbox.containers.engine import Engine
from cellwall.sandbox.containers.root_image import CELL_INSIDE

ROOTLESS_PODMAN = b"""{"MemoryLimit": true, "PidsLimit": true, "CpuCfsQuota": true,
    "Rootless": true, "CgroupVersion": "%s", "SecurityOptions": ["name=seccomp,profile=default"]}"""
INFO = b'{"MemoryLimit": true, "PidsLimit": true, "CpuCfsQuota": true, "Runtimes": {"runc": {}}}'


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@contextmanager
def engine_that_says(folder: Path, text: bytes) -> Iterator[Engine]:
    """A server that gives one answer to every request; None: none at all."""
    path = str(folder / "s")
    with suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                line, _ = server.accept()
                with line, suppress(OSError):
                    line.recv(65_536)
                    line.sendall(text)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Engine(path)
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


NONSENSE = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a cut body": b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{",
    "no JSON": answer(b"<html>"),
    "deep JSON": answer(b"[" * 100_000),
    "an error in deep JSON": answer(b"[" * 100_000, b"500 Internal Server Error"),
}
CALLS: dict[str, Callable[[Engine], object]] = {
    "create": lambda engine: engine.create("x", {}),
    "start": lambda engine: engine.start("x"),
    "not_running": lambda engine: engine.not_running("x"),
}


@pytest.mark.requirement("ERR-1", "ISO-11")
@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_an_error_with_a_code(text: str, tmp_path: Path) -> None:
    with engine_that_says(tmp_path, NONSENSE[text]) as engine:
        with pytest.raises(LayerMissing) as refused:
            engine.facts()
        assert refused.value.code == "CW-LAYER-ENGINE"
        assert str(tmp_path) not in f"{refused.value.message} {refused.value.hint}"
        for call in CALLS.values():
            with pytest.raises(SandboxFailed) as failed:
                call(engine)
            assert failed.value.code in {"CW-ENGINE-ANSWER", "CW-ENGINE-REFUSED"}


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize(
    "body", [b"{}", b'{"SecurityOptions": 7, "Runtimes": 7, "Components": [7]}']
)
def test_an_engine_that_states_nothing_has_no_walls(body: bytes, tmp_path: Path) -> None:
    with engine_that_says(tmp_path, answer(body)) as engine:
        facts = engine.facts()
    assert (facts.has_limits, facts.has_user_namespace, facts.runtimes) == (
        False,
        False,
        frozenset(),
    )
    with engine_that_says(tmp_path, answer(INFO)) as engine:  # the control
        facts = engine.facts()
    assert (facts.has_limits, facts.runtimes) == (True, {"runc"})


@pytest.mark.requirement("ISO-4", "ISO-11")
@pytest.mark.parametrize(("version", "has_limits"), [(b"1", False), (b"2", True)])
def test_a_rootless_podman_is_known_and_without_limits_on_cgroup_v1(
    version: bytes, has_limits: bool, tmp_path: Path
) -> None:
    """As Podman 4.3 answers: it claims its limits also where it cannot apply them."""
    with engine_that_says(tmp_path, answer(ROOTLESS_PODMAN % version)) as engine:
        facts = engine.facts()
    assert (facts.is_rootless, facts.has_user_namespace) == (True, True)
    assert facts.has_limits is has_limits


def test_a_list_of_containers_with_other_entries_is_read(tmp_path: Path) -> None:
    listed = b"""[7, {"Names": []}, {"Names": 3, "Id": "a"},
        {"Names": ["/cellwall-x"], "Id": "b", "State": "exited"},
        {"Names": ["/cellwall-y"], "Id": "c", "State": "running"}]"""
    with engine_that_says(tmp_path, answer(listed)) as engine:
        assert engine.not_running("cellwall=x") == [("cellwall-x", "b")]


def test_an_engine_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_ANSWER_WITHIN_S", 0.1)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    with server, pytest.raises(SandboxFailed) as failed:
        Engine(str(tmp_path / "s")).start("x")
    assert failed.value.code == "CW-ENGINE-ANSWER"


@pytest.mark.requirement("ISO-4", "ISO-11")
def test_a_runtime_that_uses_the_hosts_kernel_is_refused_where_another_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of the peer's program: of gVisor it is another one."""
    check_own_kernel(os.getpid())
    with pytest.raises(LayerMissing) as refused:
        check_own_kernel(0)  # not visible
    assert refused.value.code == "CW-LAYER-KERNEL"
    monkeypatch.setattr(
        "cellwall.sandbox.containers.container_cell.read_text",
        lambda _path: f"{CELL_INSIDE}\0join\0/.cellwall/join/line\0",
    )
    with pytest.raises(LayerMissing):
        check_own_kernel(os.getpid())
