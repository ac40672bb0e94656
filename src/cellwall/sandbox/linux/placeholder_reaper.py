"""The holder: the process that takes placeholders away, whoever was killed; see cell/reaper.c.

One for each Cellwall process. The line to it is made with the first keeper, which inherits our end:
the holder hears the line hang up only when this process and all its keepers are gone. The holder
itself is started with the first read-write workspace.
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
    """Our end of the line; every request is answered, one at a time."""

    def __init__(self) -> None:
        self._line, self._theirs = _pair()
        self._is_started = False
        self._lock = threading.Lock()
        self._last_lease = 0

    @property
    def life_fd(self) -> int:
        """What a keeper inherits and keeps open as long as it lives."""
        return self._line.fileno()

    def take(self, directory_fd: int, journal: str) -> int:
        """A lease: the placeholders in `journal` are removed from the directory when it is given
        back, or when nobody can give it back any more. The directory must be share-locked."""
        with self._lock:
            self._start()
            self._last_lease += 1
            lease = self._last_lease
            text = b"a %d %s" % (lease, os.fsencode(journal))
            if self._ask(lease, text, [directory_fd])[0] != "yes":
                raise _reaper_failure("it refused the directory")
            return lease

    def give_back(self, lease: int) -> bool:
        """Whether the placeholders are gone; if not, other runs work there, or a later start must
        try again."""
        with self._lock:
            try:
                return self._ask(lease, b"r %d" % lease)[2:] == ["0"]
            except SandboxFailed:
                return False  # the holder was killed; the journal is swept at the next start

    def drop_copy(self) -> None:
        """In a forked child: the line is the parent's."""
        self._line.close()
        self._theirs.close()

    def _start(self) -> None:
        if self._is_started and not _has_hung_up(self._line):
            return
        if self._is_started:  # killed: keepers that live now hold the old line in vain
            self._line.close()
            self._line, self._theirs = _pair()
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
        # It forks at once and leaves the line to its child, which is nobody's to reap.
        if starter.wait() != 0:
            raise _reaper_failure("it could not fork")
        self._theirs.close()
        self._is_started = True

    def _ask(self, lease: int, text: bytes, descriptors: Sequence[int] = ()) -> list[str]:
        try:
            socket.send_fds(self._line, [text], descriptors)
            while ready_to_read(self._line, timeout_s=_ANSWER_WITHIN_S):
                answer = self._line.recv(_MAX_ANSWER_BYTES).decode("ascii", "replace").split()
                if answer[1:2] == [str(lease)]:
                    return answer
                if not answer:
                    break  # it was killed; anything else is a late answer about another lease
        except OSError as error:
            raise _reaper_failure(str(error)) from error
        raise _reaper_failure("it does not answer")


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _has_hung_up(line: socket.socket) -> bool:
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


class _OfThisProcess:
    """One holder for a process; a forked child makes its own."""

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


_of_this_process = _OfThisProcess()
placeholder_reaper = _of_this_process.get
forget_in_child(_of_this_process)
