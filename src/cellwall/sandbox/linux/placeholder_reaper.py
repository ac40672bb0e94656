"""The reaper: a process that removes placeholders, whichever process was killed; see cell/reaper.c.

One for each Cellwall process. Its socket is made with the first shim, which inherits our end: the
reaper sees end of file only when this process and all its shims are gone. The reaper itself is
started with the first read-write workspace.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from cellwall.core.errors import SandboxFailed
from cellwall.core.forks import forget_in_child
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.linux.programs import cell_program

_ANSWER_WITHIN_S = 20.0
_MAX_ANSWER_BYTES = 256


class PlaceholderReaper:
    """Our end of the socket; every request is answered, one at a time."""

    def __init__(self) -> None:
        self._socket, self._theirs = _pair()
        self._is_started = False
        self._lock = threading.Lock()
        self._last_lease = 0

    @property
    def life_fd(self) -> int:
        """A shim inherits this descriptor and keeps it open while it lives."""
        return self._socket.fileno()

    def take(self, directory_fd: int, journal: str) -> int:
        """A lease: the placeholders in `journal` are removed from the directory when the lease is
        given back, or when no process is left to do so. The directory must be share-locked."""
        with self._lock:
            self._start()
            self._last_lease += 1
            lease = self._last_lease
            text = b"a %d %s" % (lease, os.fsencode(journal))
            if self._ask(lease, text, [directory_fd])[0] != "yes":
                raise _reaper_failure("the reaper refused the directory")
            return lease

    def give_back(self, lease: int) -> bool:
        """Whether the placeholders were removed; otherwise other runs work there, or a later start
        tries again."""
        with self._lock:
            try:
                return self._ask(lease, b"r %d" % lease)[2:] == ["0"]
            except SandboxFailed:
                return False  # the reaper was killed; the next start sweeps the journal

    def drop_copy(self) -> None:
        """In a forked child: close the copies of the parent's sockets."""
        self._socket.close()
        self._theirs.close()

    def _start(self) -> None:
        if self._is_started and not _is_closed(self._socket):
            return
        if self._is_started:  # killed: shims that live now hold the old socket in vain
            self._socket.close()
            self._socket, self._theirs = _pair()
        try:
            starter = subprocess.Popen(
                [cell_program(), "hold", str(self._theirs.fileno())],
                pass_fds=(self._theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
            )
        except OSError as error:
            raise _reaper_failure(str(error)) from error
        # It forks at once and leaves the socket to its daemonised child.
        if starter.wait() != 0:
            raise _reaper_failure("the reaper could not fork")
        self._theirs.close()
        self._is_started = True

    def _ask(self, lease: int, text: bytes, descriptors: Sequence[int] = ()) -> list[str]:
        try:
            socket.send_fds(self._socket, [text], descriptors)
            while ready_to_read(self._socket, timeout_s=_ANSWER_WITHIN_S):
                answer = self._socket.recv(_MAX_ANSWER_BYTES).decode("ascii", "replace").split()
                if answer[1:2] == [str(lease)]:
                    return answer
                if not answer:
                    break  # killed; any other message is a late answer about another lease
        except OSError as error:
            raise _reaper_failure(str(error)) from error
        raise _reaper_failure("the reaper does not answer")


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _reaper_failure(why: str) -> SandboxFailed:
    return SandboxFailed(
        "the process that removes placeholders could not be used",
        hint="Wait until the host is less busy, or raise its process limits; or give the "
        "directory as :cow, which needs no placeholders.",
        detail=why,
    )


class _ReaperOfProcess:
    """One reaper for each process; a forked child makes its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: PlaceholderReaper | None = None

    def get(self) -> PlaceholderReaper:
        with self._lock:
            if self._made is None:
                self._made = PlaceholderReaper()
            return self._made

    def forget_parent(self) -> None:
        made, self._made, self._lock = self._made, None, threading.Lock()
        if made is not None:
            with suppress(OSError):
                made.drop_copy()


_reaper_of_process = _ReaperOfProcess()
placeholder_reaper = _reaper_of_process.get
forget_in_child(_reaper_of_process)
