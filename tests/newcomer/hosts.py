"""Machines of a newcomer: a fresh root file system, entered as root, as a user, or by Docker.

Root and user get namespaces of their own (mounts, processes, IPC, name) and the host's kernel,
cgroups and network; the root is entered by pivot_root, since the kernel refuses user namespaces in
a chroot. There is no systemd, so a user has no cgroup. All that a host starts ends with its first
process.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from newcomer.roots import UID, USER, Unavailable, network_environment

CLONE = "cellwall"
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENTER = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
hostname newcomer
mkdir -p .host
pivot_root . .host
umount -l /.host
rmdir /.host
echo ready
# bash reaps the children that others leave behind.
exec bash -c 'while :; do sleep 3600; done'
"""
_MAX_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person types when the terminal shows a prompt; `\\1` is what the pattern caught."""

    prompt: str
    reply: str


@dataclass(frozen=True, slots=True)
class Shown:
    """How one command ended, and all that the terminal showed."""

    exit_code: int | None  # None: still running at its deadline
    text: str
    seconds: float


class Host(Protocol):
    """A machine on which one can type commands."""

    home: str
    transcript: Path
    """All that the terminal showed, as it came."""

    @property
    def lacks_cgroup(self) -> bool:
        """Whether nobody gives the newcomer a cgroup there."""

    def words(self, line: str, *, as_root: bool) -> list[str]:
        """The command of this machine that types one line there, in the clone."""

    def write(self, path: str, text: str) -> None:
        """Have the newcomer write a file."""


def type_line(
    host: Host,
    line: str,
    *,
    as_root: bool = False,
    answers: Sequence[Answer] = (),
    timeout_s: float = 600.0,
) -> Shown:
    """Type one line at a terminal of the host, answer its prompts, and wait for its end."""
    started = time.monotonic()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
    process = subprocess.Popen(
        host.words(line, as_root=as_root),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    seen, answered, waiting = "", 0, list(answers)
    transcript = host.transcript.open("ab", buffering=0)
    transcript.write(f"\n$ {line}\n".encode())
    deadline, is_late = started + timeout_s, False
    try:
        while not is_late:
            ready, _, _ = select.select([ours], [], [], 0.2)
            if ready:
                try:
                    part = os.read(ours, 65_536)
                except OSError:  # nobody is on the terminal any more
                    break
                transcript.write(part)
                seen += part.decode(errors="replace")
                if waiting and _answer(ours, seen[answered:], waiting[0]):
                    answered, waiting = len(seen), waiting[1:]
            elif process.poll() is not None:
                break  # a background process, the supervisor, may still hold the terminal
            is_late = time.monotonic() > deadline
    except BaseException:  # SIGTERM or Ctrl-C: the command of the host ends as well
        is_late = True
        raise
    finally:
        if process.poll() is None and is_late:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        exit_code = process.wait()
        os.close(ours)
        transcript.close()
    # A line that was drawn over, as by a spinner, counts as it was last drawn.
    text = re.sub(r"[^\n]*\r(?!\n)", "", seen)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")
    return Shown(None if is_late else exit_code, text, time.monotonic() - started)


def _answer(terminal: int, seen: str, answer: Answer) -> bool:
    """Type the reply if the prompt stands at the end of what was shown since the last one."""
    found = re.search(f"(?:{answer.prompt})\\s*$", seen)
    if found is not None:
        os.write(terminal, f"{found.expand(answer.reply)}\n".encode())
    return found is not None


@dataclass(slots=True)
class NamespaceHost:
    """A root file system entered by namespaces, as root or as an ordinary user."""

    root: Path
    transcript: Path
    is_root: bool
    home: str = field(init=False)
    _first: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.home = "/root" if self.is_root else f"/home/{USER}"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._first = subprocess.Popen(
            [*_ends_with_us("KILL"), "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork",
             "--kill-child=KILL", "sh", "-c", _ENTER, "sh", str(self.root)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            if self._first.stdout is None or self._first.stdout.readline() != "ready\n":
                raise Unavailable("the root file system cannot be entered: unshare needs root")
            yield
        finally:
            self._first.kill()
            self._first.communicate()

    @property
    def lacks_cgroup(self) -> bool:
        return not self.is_root

    def _first_inside(self) -> str:
        """The id, as this machine knows it, of the first process inside."""
        assert self._first is not None
        path = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children")
        return path.read_text().split()[0]

    def words(self, line: str, *, as_root: bool) -> list[str]:
        becomes_root = as_root or self.is_root
        who = ["0", "0"] if becomes_root else [str(UID), str(UID)]
        home = "/root" if becomes_root else self.home
        return [
            "nsenter", "-t", self._first_inside(), "-m", "-p", "-i", "-u", "--",
            "setpriv", "--reuid", who[0], "--regid", who[1], "--init-groups", "--",
            "env", "-i", *_environment(home, "root" if becomes_root else USER),
            "sh", "-c", f'umask {"022" if becomes_root else "002"}; cd "$1" && exec sh -c "$2"',
            "sh", "/" if as_root else f"{self.home}/{CLONE}", line,
        ]  # fmt: skip

    def write(self, path: str, text: str) -> None:
        _write(self, path, text)


@dataclass(slots=True)
class Engine:
    """A Docker daemon of its own, with all its state below one folder."""

    folder: Path
    _daemon: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        missing = [name for name in ("docker", "dockerd") if shutil.which(name) is None]
        if missing:
            raise Unavailable(f"{missing[0]} is missing; as root: apt-get install -y docker.io")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "dockerd.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [*_ends_with_us("TERM"), "dockerd", "--data-root", self.folder / "data",
                 "--exec-root", self._run_folder(), "--pidfile", self.folder / "pid", "-H", self._socket(), "--iptables=false",
                 "--ip6tables=false", "--bridge=none"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + _MAX_START_S
            while self.call("version", check=False).returncode != 0:
                if self._daemon.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"dockerd does not start; see {self.folder}/dockerd.log")
                time.sleep(0.2)
            yield
        finally:
            self._daemon.terminate()
            try:
                self._daemon.wait(30)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            # The daemon leaves its network namespace mounted.
            subprocess.run(
                ["umount", f"{self._run_folder()}/netns/default"], check=False, capture_output=True
            )
            shutil.rmtree(self._run_folder(), ignore_errors=True)
            Path(f"{self._run_folder()}.sock").unlink(missing_ok=True)

    def _run_folder(self) -> str:
        return f"/run/cellwall-newcomer-{os.getpid()}"  # sockets below it have short names

    def _socket(self) -> str:
        return f"unix://{self._run_folder()}.sock"

    def client(self) -> list[str]:
        return ["docker", "-H", self._socket()]

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.client(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise Unavailable(f"docker {words[0]}: {done.stderr.strip()[-300:]}")
        return done

    def import_root(self, root: Path, image: str) -> None:
        if self.call("image", "inspect", image, check=False).returncode == 0:
            return
        with subprocess.Popen(
            ["tar", "-C", root, "--numeric-owner", "-c", "."], stdout=subprocess.PIPE
        ) as packer:
            subprocess.run(
                [*self.client(), "import", "-", image],
                stdin=packer.stdout, stdout=subprocess.DEVNULL, check=True, timeout=600,
            )  # fmt: skip


@dataclass(slots=True)
class ContainerHost:
    """A container: `options` are those of `docker run`; the clone lies on a volume."""

    engine: Engine
    image: str
    clone: Path
    transcript: Path
    options: Sequence[str]
    user: int
    home: str = field(init=False)
    _name: str = ""

    def __post_init__(self) -> None:
        self.home = "/root" if self.user == 0 else f"/home/{USER}"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._name = self.engine.call(
            "run", "-d", "--init", "--network", "host", *self.options,
            "-v", f"{self.clone}:{self.home}/{CLONE}", self.image, "sleep", "infinity",
        ).stdout.strip()  # fmt: skip
        try:
            yield
        finally:
            self.engine.call("rm", "-f", "-v", self._name, check=False)

    @property
    def lacks_cgroup(self) -> bool:
        return True

    def words(self, line: str, *, as_root: bool) -> list[str]:
        is_root = as_root or self.user == 0
        home = "/root" if is_root else self.home
        variables = _environment(home, "root" if is_root else USER)
        return [
            *self.engine.client(), "exec", "-it", "-u", "0" if is_root else str(self.user),
            "-w", "/" if as_root else f"{self.home}/{CLONE}",
            *(word for each in variables for word in ("-e", each)),
            self._name, "sh", "-c", line,
        ]  # fmt: skip

    def write(self, path: str, text: str) -> None:
        _write(self, path, text)


def _ends_with_us(name: str) -> list[str]:
    """Words before a command that gets this signal when we end, however that happens."""
    return ["setpriv", "--pdeathsig", name, "--"]


def _environment(home: str, user: str) -> list[str]:
    settled = {
        "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "PATH": _SEARCH,
        "TERM": "xterm", "LANG": "C.UTF-8",
    }  # fmt: skip
    return [f"{name}={value}" for name, value in {**network_environment(), **settled}.items()]


def _write(host: Host, path: str, text: str) -> None:
    place = shlex.quote(path)
    line = f'mkdir -p "$(dirname {place})" && printf %s {shlex.quote(text)} > {place}'
    if (shown := type_line(host, line)).exit_code != 0:
        raise Unavailable(f"cannot write {path} there: {shown.text.strip()[-200:]}")
