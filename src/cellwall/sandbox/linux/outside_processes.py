"""Starts and controls the two processes of Cellwall outside a cell: the shim and the reaper.

The shim (cell/shim.c) starts all other processes of a run. The reaper (cell/reaper.c) removes
placeholders, whichever process was killed; there is one for each Cellwall process. Its socket is
made with the first shim, which inherits our end: the reaper sees end of file only when this process
and all its shims are gone. The reaper itself is started with the first read-write workspace.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.forks import OwnerProcess, forget_in_child
from cellwall.sandbox.files.descriptors import closing_fd, write_all
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.channels import ready_to_read, receive_descriptors, receive_words
from cellwall.sandbox.linux.process_table import is_suspended
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_serving import wait_readable_soon

FIRST_SENT_FD = 64  # as in cell/shim.c
_MAX_FRAME_BYTES = 256
_TREE_WITHIN_S = 20.0
# Messages of bubblewrap when the kernel, a sysctl or AppArmor refuses the namespaces.
_NO_NAMESPACES = ("new namespace", "uid map", "gid map", "No permissions", "unshare user")
_MAX_DIAGNOSTIC_BYTES = 4096
# open_tree(2) and mount_setattr(2) for a workspace: root without CAP_SYS_ADMIN, or a file system
# without idmapped mounts.
_STAGING = ("stage-clone ", "stage-idmap ")
# The kernel takes no upper layer or no id mapping on this file system, as on an overlay.
_UNSUITED = (f"mount-overlay {errno.EINVAL}", f"stage-idmap {errno.EINVAL}")


def memory_file(name: str, content: bytes) -> int:
    """A new memfd with this content, positioned at its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_memory_file(descriptor, content)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_memory_file(descriptor: int, content: bytes) -> None:
    """Fill an empty memfd."""
    write_all(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)


class CellShim:
    """The parent of a run's processes, which outlives them; see cell/shim.c."""

    def __init__(self, *, tag: str, prefix: Sequence[str] = ()) -> None:
        """`tag` marks the state folder on the command line, for an emergency stop."""
        life_fd = placeholder_reaper().life_fd
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._diagnostics, diagnostics = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._process = subprocess.Popen(
                [*prefix, cell_program(), "keep", str(theirs.fileno()), str(life_fd), tag],
                pass_fds=(theirs.fileno(), life_fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=diagnostics,  # its messages are not output of the code (ERR-2)
                env=cgroups.scope_environment() if prefix else {},
                start_new_session=True,  # Ctrl-C goes to the supervisor, which then ends the run
                cwd="/",
            )
        except OSError as error:
            self._socket.close()
            os.close(self._diagnostics)
            raise SandboxFailed(
                "the host could not start another process",
                hint="Wait until it is less busy, or raise its process and memory limits.",
                detail=str(error),
            ) from error
        finally:
            theirs.close()
            os.close(diagnostics)
        self._socket.setblocking(False)
        self._owner = OwnerProcess()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, plan: bytes, descriptors: Sequence[int]) -> None:
        """Send the plan; in it, `descriptors` have the numbers from FIRST_SENT_FD on."""
        with closing_fd(memory_file("cellwall-plan", plan)) as plan_fd:
            try:
                socket.send_fds(self._socket, [b"p"], [plan_fd, *descriptors])
            except OSError as error:
                raise self.failure("keep-line") from error

    @contextmanager
    def requested_trees(
        self, plan: bytes, descriptors: Sequence[int], count: int
    ) -> Iterator[Callable[[], list[int]]]:
        """Mounts made by the shim for a cell of its template, while the caller does something else;
        the function blocks until they are made.

        Each request is answered on a socket of its own: a late answer, or any other message of the
        shim, can never be taken for the workspace of another cell.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs, closing_fd(memory_file("cellwall-plan", plan)) as plan_fd:
                try:
                    socket.send_fds(self._socket, [b"t"], [theirs.fileno(), plan_fd, *descriptors])
                except OSError as error:
                    raise self.failure("tree-line") from error
            yield partial(self._receive_trees, ours, count)

    def _receive_trees(self, line: socket.socket, count: int) -> list[int]:
        trees: list[int] = []
        try:
            while len(trees) < count:
                trees.append(self._receive_tree(line))
        except BaseException:
            for tree in trees:
                os.close(tree)
            raise
        return trees

    def _receive_tree(self, line: socket.socket) -> int:
        if not ready_to_read(line, timeout_s=_TREE_WITHIN_S):
            raise self.failure("tree-in-time")
        try:
            packet, trees, _flags = receive_descriptors(line, _MAX_FRAME_BYTES, 1)
        except OSError as error:
            raise self.failure("tree-answer") from error
        if not trees:
            raise self.failure(packet.decode("ascii", "replace").removeprefix("notree ") or "tree")
        return trees[0]

    def open_prefork(self, plan: bytes, zygote: socket.socket) -> socket.socket:
        """The socket over which single-use cells are requested; see cell/prefork.c."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, closing_fd(memory_file("cellwall-prefork", plan)) as plan_fd:
            try:
                sent = [plan_fd, theirs.fileno(), zygote.fileno()]
                socket.send_fds(self._socket, [b"s"], sent)
            except OSError as error:
                ours.close()
                raise self.failure("keep-stock") from error
        ours.setblocking(False)
        return ours

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[str] | None:
        """The shim's next message; None if there is none, empty at end of file."""
        return receive_words(self._socket)

    async def next_message(self) -> list[str]:
        """Wait for the shim's next message; empty at end of file."""
        while (words := self.receive()) is None:
            await wait_readable_soon(self._socket.fileno())
        return words

    def kill(self) -> None:
        with suppress(OSError):
            self._socket.send(b"k")

    def release(self) -> None:
        """After the counters were read: the shim may remove the cgroup."""
        with suppress(OSError):
            self._socket.send(b"d")

    def abandon(self) -> None:
        """Only before `begin`: systemd-run may wait for ever for a manager that does not answer."""
        self._process.kill()

    def drop_copy(self) -> None:
        """In a forked child: close the copy of the parent's socket."""
        self._socket.close()

    def close(self) -> None:
        """Close the socket, which ends every process of the run, and reap the shim."""
        if self._owner.is_current:
            # A forked child may hold a copy of the socket.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        diagnostics, self._diagnostics = self._diagnostics, -1
        os.close(diagnostics)
        if is_suspended(self._process.pid):
            _suspended.append(
                self._process
            )  # frozen as evidence: it goes on, and ends, when thawed
            return
        self._process.wait()

    def failure(self, step: str) -> CellwallError:
        """The error for walls that could not be built; bubblewrap's messages go to the record."""
        try:
            diagnostics = os.read(self._diagnostics, _MAX_DIAGNOSTIC_BYTES).decode(
                "utf-8", "replace"
            )
        except OSError:
            diagnostics = ""
        detail = f"{step}: {diagnostics.strip()}"
        if any(sign in diagnostics for sign in _NO_NAMESPACES):
            return LayerMissing(
                "this host does not let bubblewrap make user namespaces",
                hint="Run `cellwall doctor`: it names the setting and the command that fixes it.",
                code="CW-LAYER-USERNS",
                detail=detail,
            )
        if step in _UNSUITED:
            return LayerMissing(
                "the file system of the directory, or of the state folder, cannot be layered or "
                "mapped by the kernel, as an overlay cannot",
                hint="Use a volume, a disk or a tmpfs for both; CELLWALL_HOME moves the state "
                "folder. For a container see docs/guides/hosts.md.",
                code="CW-LAYER-OVERLAY",
                detail=detail,
            )
        if step.startswith(_STAGING):
            return LayerMissing(
                "root may not hand a directory into the sandbox here",
                hint="In a container, run Cellwall as an ordinary user (docker run --user 1000), "
                "with the directory on a volume; see docs/guides/hosts.md.",
                code="CW-LAYER-MOUNT",
                detail=detail,
            )
        return SandboxFailed(
            f"the sandbox could not be built (step {step})",
            hint="Run `cellwall doctor` to see which layer fails on this host.",
            code="CW-SANDBOX-BUILD",
            detail=detail,
        )


_suspended: list[subprocess.Popen[bytes]] = []
_ANSWER_WITHIN_S = 20.0
_MAX_ANSWER_BYTES = 256


class PlaceholderReaper:
    """Our end of the socket; every request is answered, one at a time."""

    def __init__(self) -> None:
        self._socket, self._theirs = _socket_pair()
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

    def __del__(self) -> None:
        # Open until the process ends, for that end is the signal; without a ResourceWarning then.
        if hasattr(self, "_theirs"):  # else there was no descriptor left for the sockets
            self.drop_copy()

    def _start(self) -> None:
        if self._is_started and not _is_closed(self._socket):
            return
        if self._is_started:  # killed: shims that live now hold the old socket in vain
            self._socket.close()
            self._socket, self._theirs = _socket_pair()
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


def _socket_pair() -> tuple[socket.socket, socket.socket]:
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
