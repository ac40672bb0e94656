"""The program `cellwall`, started by a fork of an interpreter that has imported it already.

A start of Python with all imports takes longer than most commands, and tests start hundreds of
them. What runs is a process of its own with its own descriptors, environment and exit code; tests
about the start itself start the real program (`PROGRAM`).
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, NoReturn

PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_MAX_BYTES = 1 << 20
_MAX_DESCRIPTORS = 1024
_PR_SET_DUMPABLE = 4
_IMPORTED = (
    "cellwall.interfaces.entry",
    "cellwall.interfaces.sandbox_options",
    "cellwall.guard.redact",
    "cellwall.guard.service",
    "cellwall.egress.service",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "anyio._backends._asyncio",
    "anyio._core._signals",
)
_FIRST_PIPE = 10  # among the arguments of `Popen._execute_child`, from CPython 3.11 to 3.14
_IMPORTED_WHOLE = (
    "cellwall.interfaces.sdk",
    "cellwall.interfaces.cli",
    "cellwall.interfaces.hooks",
    "cellwall.interfaces.mcp",
    "cellwall.interfaces.supervisor",
    "cellwall.runtime",
    "cellwall.egress.pages",
    "cellwall.egress.proxy",
)


# --- the side of the tests


class Popen(subprocess.Popen[Any]):
    """`cellwall` with these words; or Python code with these words, which may import Cellwall.

    Like `subprocess.Popen`, except that the process is a child of the server. `on_terminal`: the
    first stream is its controlling terminal; `user`: the uid and gid of somebody without any right.
    """

    def __init__(
        self,
        words: Sequence[str | bytes],
        *,
        code: str | None = None,
        on_terminal: bool = False,
        **options: Any,
    ) -> None:
        self._asked = {
            "words": [os.fsdecode(word) for word in words],
            "code": code,
            "env": dict(os.environ if (env := options.pop("env", None)) is None else env),
            "cwd": os.fspath(options.pop("cwd", None) or os.getcwd()),
            "has_session": options.pop("start_new_session", False) or on_terminal,
            "on_terminal": on_terminal,
            "user": options.pop("user", None),
        }
        unknown = options.keys() - {"stdin", "stdout", "stderr", "text", "bufsize"}
        assert not unknown, f"a fork of the server has no such option: {unknown}"
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__([PROGRAM, *words], **options)

    def _execute_child(self, *given: Any) -> None:
        """In place of a fork and an exec by this process."""
        pipes = given[_FIRST_PIPE : _FIRST_PIPE + 6]
        streams = [own if stream == -1 else stream for own, stream in enumerate(_theirs(*pipes))]
        try:
            self._line.connect(_server())
            socket.send_fds(self._line, [json.dumps(self._asked).encode()], streams)
            self.pid = int(self._line.recv(64))
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        """Its exit code, which the server tells once."""
        if self.returncode is None:
            if timeout is not None and not select.select([self._line], [], [], max(0, timeout))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._line.recv(64))
            self._line.close()
        return self.returncode


def _theirs(
    stdin: int, _feeds: int, _reads: int, stdout: int, _reads_too: int, stderr: int
) -> tuple[int, int, int]:
    return stdin, stdout, stderr


def run(
    words: Sequence[str | bytes],
    *,
    stdin: bytes,
    env: Mapping[str, str],
    timeout_s: float,
    code: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` with captured output."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, code=code, env=env, **pipes, **options) as process:
        try:
            shown = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, *shown)


_LAUNCHER = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({address!r})
asked = {{"words": sys.argv[1:], "code": None, "env": dict(os.environ), "cwd": os.getcwd(),
         "has_session": False, "on_terminal": False, "user": {user}}}
socket.send_fds(line, [json.dumps(asked).encode()], [0, 1, 2])
line.recv(64)
code = int(line.recv(64))
sys.exit(code if code >= 0 else 128 - code)
"""


def install_launcher(folder: str | os.PathLike[str], *, user: int | None = None) -> None:
    """A program `cellwall` there, for shell lines: it passes its streams on to a fork, which may be
    another user's.

    Not for tests about the process itself: signals, parents, and descriptors behind the third.
    """
    path = os.path.join(folder, "cellwall")
    with open(path, "x", encoding="utf-8") as file:
        file.write(_LAUNCHER.format(python=sys.executable, address=_server(), user=user))
    os.chmod(path, 0o755)


@cache
def _server() -> str:
    """The address of the one that serves this process."""
    folder = tempfile.mkdtemp(prefix="cw-fork-")
    address = os.path.join(folder, "line")
    # With its own group: an interrupt at the keyboard is for the tests.
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"ready\n"
    atexit.register(_end, server, folder)
    return address


def _end(server: subprocess.Popen[bytes], folder: str) -> None:
    server.kill()
    server.wait()
    os.unlink(os.path.join(folder, "line"))
    os.rmdir(folder)


# --- the side of the program


def prepare() -> None:
    """Imports all commands, and reads the tables that come out the same in every process."""
    for package in _IMPORTED_WHOLE:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{found.name}")
    for name in _IMPORTED:
        importlib.import_module(name)
    from cellwall.core import protected_names  # noqa: PLC0415  # this and the next: only the server imports them
    from cellwall.core.limits import Limits  # noqa: PLC0415
    from cellwall.guard.scanning import Scanner  # noqa: PLC0415
    from cellwall.parsing.credentials.text_scan import spans_of  # noqa: PLC0415
    from cellwall.policy.policy_file import builtin_rules  # noqa: PLC0415
    from cellwall.runtime.guarding import screened_code  # noqa: PLC0415
    from cellwall.sandbox import languages  # noqa: PLC0415
    from cellwall.sandbox.linux import seccomp  # noqa: PLC0415

    for table in (protected_names.load, protected_names.build_files, protected_names.instructions):
        table()
    builtin_rules()
    spans_of("password=correct-horse-battery-staple")
    Scanner().scan("a text")
    screened_code("1", "python")
    screened_code("true", "shell")
    languages.available()  # reads Deno, which is large, to compare its hash
    languages.inside_files()
    # As a cell asks for its filter: it is kept by the arguments.
    for has_cgroup, reports_sockets in product((True, False), repeat=2):
        seccomp.build(
            seccomp.host_arch(),
            open_files=Limits().open_files,
            has_cgroup=has_cgroup,
            reports_sockets=reports_sockets,
        )
    seccomp.build(seccomp.host_arch(), open_files=None, for_zygote=True)
    _freeze()


@cache
def prepare_packages() -> None:
    """The tables of popular names take a second; few tests need them."""
    from cellwall.admin import package_cells, package_locks, python_installs  # noqa: F401, PLC0415
    from cellwall.packages.locks import pylock, workspace  # noqa: F401, PLC0415
    from cellwall.packages.names import Ecosystem  # noqa: PLC0415
    from cellwall.packages.popular import name_index, popular_rank  # noqa: PLC0415

    for ecosystem in Ecosystem:
        name_index(ecosystem)
        popular_rank(ecosystem, "a")
    _freeze()


@cache
def prepare_service() -> None:
    """FastAPI, SQLAlchemy and Alembic take seconds; few tests start a service or its commands."""
    importlib.import_module("alembic.command")
    importlib.import_module("alembic.config")
    importlib.import_module("sqlalchemy.dialects.sqlite.aiosqlite")
    importlib.import_module("cellwall.storage.migrations.versions.r0001_accounts")
    importlib.import_module("cellwall.admin.account_admin")
    importlib.import_module("cellwall.interfaces.http.server")
    importlib.import_module("cellwall.interfaces.http.startup")
    importlib.import_module("uvicorn.lifespan.on")
    importlib.import_module("uvicorn.protocols.websockets.auto")
    _freeze()


def _freeze() -> None:
    assert threading.active_count() == 1  # a fork takes no other thread along
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at


def serve(address: str) -> dict[str, Any]:
    """Returns what was asked for, in a process that was made for it alone."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.bind(address)
    line.listen(64)
    print("ready", flush=True)
    parent = os.getppid()
    children: dict[int, tuple[socket.socket, int]] = {}
    ready = selectors.DefaultSelector()
    ready.register(line, selectors.EVENT_READ)
    while os.getppid() == parent:
        for key, _ in ready.select(1.0):
            if key.data is not None:
                connection, pid = children.pop(key.fd)
                ready.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection, suppress(OSError):
                    connection.send(str(status).encode())
                continue
            connection, _ = line.accept()
            data, descriptors, _, _ = socket.recv_fds(connection, _MAX_BYTES, 3)
            asked = json.loads(data.decode())
            if "packages" in asked["words"]:
                prepare_packages()
            if not {"serve", "user", "token"}.isdisjoint(asked["words"]):
                prepare_service()
            pid = os.fork()
            if pid == 0:
                # Closed by their objects: a number that is used anew must not be closed by one later.
                ready.close()
                for each in (line, connection, *(found for found, _ in children.values())):
                    each.close()
                _become(descriptors)
                return asked
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())
            watched = os.pidfd_open(pid)
            children[watched] = connection, pid
            ready.register(watched, selectors.EVENT_READ, data=pid)
    os._exit(0)


def _become(descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, _MAX_DESCRIPTORS)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - for as long as the process lasts
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become_user(number: int) -> None:
    """As an exec would leave it: a process that has changed its user only could not read /proc/self."""
    os.setgroups([])
    os.setgid(number)
    os.setuid(number)
    assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


def end(code: object) -> NoReturn:
    """As the interpreter ends, but nothing is freed: that would copy all pages of the fork, 0.4 s."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    os._exit(int(code or 0) & 0xFF)


def use(asked: dict[str, Any]) -> object:
    """What the program or the code returns, or leaves with."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    try:
        if asked["code"] is None:
            sys.argv = [PROGRAM, *asked["words"]]
            return sys.modules["cellwall.interfaces.entry"].main()
        sys.argv = ["-c", *asked["words"]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as left:
        return left.code
    except Exception:  # as the interpreter shows what nobody has caught
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    # A folder that does not exist: what is found out about programs is kept in memory alone.
    os.environ["CELLWALL_HOME"] = os.path.join(os.path.dirname(sys.argv[1]), "state")
    prepare()
    asked = serve(sys.argv[1])
    if asked["has_session"]:
        os.setsid()
    if asked["on_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if asked["user"] is not None:
        become_user(asked["user"])
    end(use(asked))
