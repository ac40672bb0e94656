"""The client's end of the supervisor's socket: whom it trusts, and what has begun nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cellwall.core.frames import FrameReader, encode
from cellwall.interfaces.supervisor import client
from cellwall.interfaces.supervisor.client import SupervisorConnection, connect, is_text
from conftest import ORDINARY_UID, need


@contextmanager
def listening(home: Path, *, uid: int | None = None) -> Iterator[socket.socket]:
    """A socket at the supervisor's place, on which a process of that user listens."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(home / "supervisor.sock"))
        if uid is None:
            listener.listen()
            yield listener
            return
        # The kernel's word is about the process that listens.
        child = os.fork()
        if child == 0:
            os.setuid(uid)
            listener.listen()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        yield listener


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def environ(home: Path) -> dict[str, str]:
    return {"CELLWALL_HOME": str(home)}


@pytest.mark.requirement("ISO-10")
def test_a_socket_of_this_user_is_trusted(home):
    with listening(home):
        found = connect(environ(home))
        assert found is not None
        assert found.pid == os.getpid()
        found.close()


@pytest.mark.requirement("ISO-10")
def test_a_socket_of_another_user_is_not(home):
    need(os.geteuid() == 0, "root, to be somebody else")
    with listening(home, uid=ORDINARY_UID):
        assert connect(environ(home)) is None


@pytest.mark.requirement("ISO-10")
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_reach_is_not_trusted(home, mode):
    with listening(home):
        home.chmod(mode)
        assert connect(environ(home)) is None


def test_a_stale_socket_and_no_socket_are_no_supervisor(home):
    assert connect(environ(home)) is None
    with listening(home):
        pass
    assert (home / "supervisor.sock").exists()
    assert connect(environ(home)) is None
    assert connect(environ(home / "nowhere")) is None


def test_a_socket_with_a_full_queue_is_no_supervisor(home):
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(home / "supervisor.sock"))
        listener.listen(0)
        waiting = [connect(environ(home)) for _ in range(3)]
    assert waiting[-1] is None
    for each in waiting:
        if each is not None:
            each.close()


def answered(*answers: bytes) -> tuple[bool, list[tuple[dict, bytes]]]:
    """What `begin` returns where the other end says this, and the frames that it has got."""
    ours, theirs = socket.socketpair()
    got: list[tuple[dict, bytes]] = []

    def serve() -> None:
        reader, left = FrameReader(max_frame_bytes=1 << 24), list(answers)
        while chunk := theirs.recv(1 << 16):
            for frame in reader.feed(chunk):
                got.append((dict(frame.message), frame.blob))
                if left:
                    theirs.sendall(left.pop(0))
            if not left and answers and len(got) > len(answers):
                break
        theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    connection = SupervisorConnection(ours)
    begun = connection.begin({"do": "single"}, b"data")
    connection.close()
    server.join()
    return begun, got


def test_the_data_follows_the_word_that_the_run_is_taken():
    assert answered(encode({"taken": True})) == (
        True,
        [({"do": "single"}, b""), ({"do": "go"}, b"data")],
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"stale": "0.0"},
        {"elsewhere": True},
        {"error": {"code": "CW-BAD-INPUT"}},
        {"out": "stdout"},
        {"outcome": {}},
    ],
    ids=str,
)
def test_without_that_word_nothing_follows(answer):
    assert answered(encode(answer)) == (False, [({"do": "single"}, b"")])


@pytest.mark.parametrize(
    "answer", [b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\1\0\0\0\0{"], ids=["list", "half"]
)
def test_nonsense_is_no_such_word(answer, monkeypatch):
    monkeypatch.setattr(client, "_TAKES_WITHIN_S", 0.05)
    assert answered(answer)[0] is False


def test_a_supervisor_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "_TAKES_WITHIN_S", 0.05)
    assert answered() == (False, [({"do": "single"}, b"")])


class _Alarm(TimeoutError):
    """What callers raise in a handler of SIGALRM to bound a call."""


def _ring(_number: int, _frame: object) -> None:
    raise _Alarm


def test_an_error_of_a_signal_handler_is_the_caller_s(monkeypatch):
    monkeypatch.setattr(client, "_TAKES_WITHIN_S", 30.0)
    before = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    ours, theirs = socket.socketpair()
    try:
        with closing(ours), closing(theirs), pytest.raises(_Alarm):
            SupervisorConnection(ours).begin({"do": "single"}, b"")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_signals_do_not_lengthen_the_wait(monkeypatch):
    monkeypatch.setattr(client, "_TAKES_WITHIN_S", 0.3)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        assert answered() == (False, [({"do": "single"}, b"")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_data_that_a_hanging_supervisor_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "_TAKES_WITHIN_S", 0.3)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(encode({"taken": True}))
        assert SupervisorConnection(ours).begin({"do": "single"}, bytes(8 << 20)) is False


@pytest.mark.parametrize("how", ["begin", "plain"])
def test_a_supervisor_that_is_gone_raises_no_sigpipe(how):
    """A command-line tool that embeds the SDK often has the default action of SIGPIPE: its end."""
    ours, theirs = socket.socketpair()
    theirs.close()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if how == "plain":
            ours.sendall(b"x")
        os._exit(int(SupervisorConnection(ours).begin({"do": "single"}, b"")))
    ours.close()
    status = os.waitpid(child, 0)[1]
    assert status == (signal.SIGPIPE if how == "plain" else 0)  # the first is the control


def test_only_text_is_sent():
    assert is_text({"a": ["é", 1, None]})
    assert not is_text(["\udcff"])
