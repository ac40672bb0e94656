"""Runs Python that comes over descriptor 4, and tells over descriptor 3 what came of it.

It runs inside the cell with the code's own rights, so nothing it says is trusted: the supervisor
reads frames (two lengths, a JSON object, raw bytes) as bounded, plain data. Imports are late where
they cost more than most code does; in a warm interpreter all are already there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than most code takes to run
if TYPE_CHECKING:
    from typing import Any, NoReturn

REPORTS = 3
REQUESTS = 4
HOME = "/.cellwall"
MAX_TEXT = 65536
ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST
MEMORY_FILE_CLOEXEC = 1
SITE_ENDINGS = ("/dist-packages", "/site-packages", "/opt/packages")


class _Plain:
    """How the C part of `json` is told to read; the module itself costs milliseconds to import."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, None


def parse(text: str) -> Any:
    """JSON as the supervisor writes it."""
    if "json" in sys.modules:
        import json  # waits for a thread that is just importing it

        return json.loads(text)
    from _json import make_scanner

    return make_scanner(_Plain())(text, 0)[0]  # type: ignore[arg-type]  # as `json` itself calls it


def spell(message: dict[str, Any]) -> str:
    """JSON; most reports are a few numbers and need no encoder."""
    if all(type(value) is int or value == [] for value in message.values()):
        return "{" + ",".join(f'"{name}":{value}' for name, value in message.items()) + "}"
    import json

    return json.dumps(message)


class Channel:
    """The only line to the supervisor: two pipes, since a socket would carry descriptors as well.

    Threads of the code may use it at once, for tools.
    """

    def __init__(self) -> None:
        from _thread import allocate_lock

        self._buffer = bytearray()
        self._new_lock = allocate_lock
        self._guard = allocate_lock()  # held for moments only, never while reading
        self._has_reader = False
        self._waiting: list[Any] = []
        self._for_others: list[tuple[dict[str, Any], bytes]] = []

    def wait(self, key: str, value: object = None) -> tuple[dict[str, Any], bytes] | None:
        """The next frame with this key (and value); what others wait for is kept for them.

        One of those who wait reads. Whenever it has read, all others look again: for their frame,
        or for the place of the reader.
        """
        while True:
            woken = self._new_lock()
            woken.acquire()
            with self._guard:
                for place, frame in enumerate(self._for_others):
                    if key in frame[0] and value in (None, frame[0][key]):
                        return self._for_others.pop(place)
                is_reader = not self._has_reader
                if is_reader:
                    self._has_reader = True
                else:
                    self._waiting.append(woken)
            if not is_reader:
                woken.acquire()
                continue
            try:
                found = self.read()
                if found is None or (key in found[0] and value in (None, found[0][key])):
                    return found
                if len(self._for_others) < 64:
                    self._for_others.append(found)
            finally:
                with self._guard:
                    self._has_reader = False
                    waiting, self._waiting = self._waiting, []
                for each in waiting:
                    each.release()

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame, or None when the supervisor is gone."""
        if not self._has(8):
            return None
        text_end = 8 + int.from_bytes(self._buffer[:4], "big")
        end = text_end + int.from_bytes(self._buffer[4:8], "big")
        if not self._has(end):
            return None
        text, blob = bytes(self._buffer[8:text_end]), bytes(self._buffer[text_end:end])
        del self._buffer[:end]
        return parse(text.decode("ascii")), blob

    def _has(self, count: int) -> bool:
        """Nothing is taken before all is there: an interrupt may come in between."""
        while len(self._buffer) < count:
            chunk = os.read(REQUESTS, 1 << 20)
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def write(self, message: dict[str, Any]) -> None:
        """Send one; code that closed the descriptor simply has no answer."""
        text = spell(message).encode("ascii")
        data = memoryview(len(text).to_bytes(4, "big") + bytes(4) + text)
        try:
            while data:
                data = data[os.write(REPORTS, data) :]
        except OSError:
            pass


def show() -> Any:
    """The module that makes rich results; loaded when first needed."""
    if "_cellwall_show" not in sys.modules:
        sys.path.insert(0, HOME)  # before any package that has a module of this name
        try:
            import _cellwall_show  # type: ignore[import-not-found]  # noqa: F401  # there, inside
        finally:
            sys.path.remove(HOME)
    return sys.modules["_cellwall_show"]


class ToolError(RuntimeError):
    """A call of a host's tool was refused or failed."""


class Tools:
    """Functions that the host offers: `tools.name(...)`. Each call is judged outside.

    What is refused or fails there is a `tools.ToolError` here.
    """

    ToolError = ToolError

    def __init__(self, channel: Channel, names: list[str]) -> None:
        import threading

        self._channel, self._names, self._count = channel, tuple(names), 0
        self._lock = threading.Lock()
        self._mark = os.urandom(8).hex()  # answers to calls that were made by hand are not ours

    def __dir__(self) -> list[str]:
        return list(self._names)

    def __repr__(self) -> str:
        return f"tools: {', '.join(self._names)}"

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"the host offers no tool {name!r}; it offers: {self._names}")

        def call(*args: object, **kwargs: object) -> object:
            return self._call(name, args, kwargs)

        call.__name__ = name
        return call

    def _call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with self._lock:  # not while waiting: a call that is never answered must not stop others
            self._count += 1
            number = f"{self._mark}-{self._count}"
            message = {"call": number, "name": name, "args": list(args), "kwargs": kwargs}
            self._channel.write(message)
        frame = self._channel.wait("answer", number)
        if frame is None:
            raise ToolError("the host is gone")
        answer = frame[0]
        if "error" in answer:
            raise ToolError(answer["error"])
        return answer.get("value")


def add_packages(paths: list[str]) -> None:
    """Behind the standard library, before the packages of the system: what was asked for wins."""
    found: list[object] = [*sys.path]  # code may put anything there
    others = (
        place
        for place, path in enumerate(found)
        if isinstance(path, str) and path.endswith(SITE_ENDINGS)
    )
    place = next(others, len(found))
    sys.path[place:place] = [path for path in paths if path not in sys.path]


class InstalledPackages:
    """What `pip install` put below the home, found without a new interpreter.

    It is looked for before each piece of code, and when an import finds nothing: the same piece may
    have installed it.
    """

    def __init__(self) -> None:
        self._seen: tuple[str, int] | None = None

    def refresh(self) -> bool:
        """Whether something has changed since the last call."""
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        base = os.environ.get("PYTHONUSERBASE") or os.environ.get("HOME", "") + "/.local"
        folder = f"{base}/lib/{version}/site-packages"
        try:
            seen = (folder, os.stat(folder).st_mtime_ns)
        except (OSError, ValueError):
            return False
        if seen == self._seen:
            return False
        self._seen = seen  # first: what a .pth file runs may import something as well
        import importlib
        import site

        before = list(sys.path)
        site.addsitedir(folder)
        added = [path for path in sys.path if path not in before]
        sys.path[:] = before
        add_packages(added)
        importlib.invalidate_caches()
        return True

    def find_spec(self, name: str, path: object = None, _target: object = None) -> Any:
        """The last finder of all: nobody else knows the name."""
        if path is not None or not self.refresh():
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name)


class Session:
    """One interpreter's state: a `__main__` of the code's own, and how it is fed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._count = 0
        self._sources: dict[str, str] = {}
        self._tools: Tools | None = None
        self._may_interrupt = self._is_starting = self._is_interrupted = False
        self._shown: list[dict[str, object]] = []
        self._installed = InstalledPackages()
        self._module: Any = type(sys)("__main__")
        import builtins

        builtins.display = self._display  # type: ignore[attr-defined]  # as notebooks have it
        sys.modules["__main__"] = self._module
        sys.argv = [""]
        sys.path.insert(0, "")

    def _interrupt(self, *_: object) -> None:
        """SIGINT is for the code: between two pieces of it there is nothing to interrupt, and our
        own work must not break off in the middle."""
        if self._may_interrupt:
            raise KeyboardInterrupt
        self._is_interrupted = self._is_starting

    def serve(self) -> NoReturn:
        """Until the supervisor is gone, or the one run of a one-shot cell is done."""
        from _signal import SIGINT, signal  # type: ignore[import-not-found]  # the C part alone

        signal(SIGINT, self._interrupt)
        sys.meta_path.append(self._installed)
        while True:
            frame = self._channel.wait("code")
            if frame is None:
                leave(0)
            request, blob = frame
            code = self.run(request, blob)
            if request.get("once"):
                leave(code)

    def run(self, request: dict[str, Any], blob: bytes) -> int:
        """Run one piece of code, tell about it, and return the exit code it would have."""
        self._is_interrupted, self._is_starting = False, True
        stdin = blob[: request["stdin"]] if request["stdin"] is not None else None
        source = blob[len(stdin or b"") :]
        self._count += 1
        if sys.modules.get("_cellwall_show") is not None:
            show().renew()
        os.environ.update(request.get("base", {}))
        before = {name: os.environ.get(name) for name in request["env"]}
        os.environ.update(request["env"])
        if request.get("paths"):
            add_packages(request["paths"])
        if request["tools"]:
            tools = self._tools = self._tools or Tools(self._channel, request["tools"])
            sys.modules["tools"] = tools  # type: ignore[assignment]  # so that `import tools` works too
            self._module.__dict__["tools"] = tools
        if stdin is not None:
            self._feed(stdin)
        report: dict[str, Any] = {"done": request["code"]}
        code = 0
        try:
            try:
                self._may_interrupt, self._is_starting = True, False
                if self._is_interrupted:
                    raise KeyboardInterrupt
                self._execute(source, report)
            finally:
                self._may_interrupt = False
        except SystemExit as wanted:
            code = self._wanted(wanted)
        except BaseException as error:
            code = 1
            try:
                report["error"] = show().clean_traceback(error, self._sources)
                sys.stderr.write(report["error"]["traceback"])
            except BaseException:
                report["error"] = {"type": type(error).__name__, "message": "", "traceback": ""}
        report["exit"] = code
        if not request.get("once"):
            self._restore(request["env"], before)
            if stdin is not None:
                self._feed(b"")  # what this call has left is not the next one's
        self._finish(report)
        return code

    def _restore(self, given: dict[str, str], before: dict[str, str | None]) -> None:
        """Variables given with one call are that call's, unless the code has set them itself."""
        for name, value in before.items():
            if os.environ.get(name) != given[name]:
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def _execute(self, source: bytes, report: dict[str, Any]) -> None:
        name = f"<code {self._count}>" if self._count > 1 else "<code>"
        self._sources[name] = source.decode("utf-8", "replace")
        self._installed.refresh()
        tree = compile(source, name, "exec", ONLY_TREE, dont_inherit=True)
        last = None
        if tree.body and type(tree.body[-1]).__name__ == "Expr":
            import _ast

            last = _ast.Expression(tree.body.pop().value)
        names = self._module.__dict__
        exec(compile(tree, name, "exec", dont_inherit=True), names)
        if last is not None:
            value = eval(compile(last, name, "eval", dont_inherit=True), names)
            if value is not None:
                self._tell_value(value, report)

    def _tell_value(self, value: Any, report: dict[str, Any]) -> None:
        names = self._module.__dict__
        names["_"] = value
        if type(value) in (int, float, bool, str) and len(str(value)) < MAX_TEXT:
            is_plain = value == value and value not in (float("inf"), float("-inf"))
            report["value"], report["text"] = (value if is_plain else None), repr(value)
            return
        is_plain, form = show().plain(value)
        described = show().describe(value)
        report["value"] = form if is_plain else None
        report["text"] = described.get("text")
        if described.keys() - {"text"}:
            self._shown.append(described)

    def _display(self, *values: object) -> None:
        """What notebooks call `display`: a rich result that is not the last expression."""
        for value in values:
            self._shown.append(show().describe(value))

    def _finish(self, report: dict[str, Any]) -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            pass
        if "matplotlib.pyplot" in sys.modules:
            self._shown += show().figures()
        report["results"], self._shown = self._shown, []
        if sys.modules.get("_cellwall_show") is not None and show().was_cut():
            report["cut"] = 1
        try:
            self._channel.write(report)
        except (TypeError, ValueError, RecursionError):
            told = {"done": report["done"], "exit": report["exit"], "results": [], "cut": 1}
            self._channel.write(told)

    def _feed(self, stdin: bytes) -> None:
        descriptor = os.memfd_create("stdin", MEMORY_FILE_CLOEXEC)
        os.write(descriptor, stdin)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)

    def _wanted(self, stop: SystemExit) -> int:
        """The exit code of `sys.exit(...)`, as the interpreter itself would have it."""
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        sys.stderr.write(f"{stop.code}\n")
        return 1


def leave(code: int) -> NoReturn:
    """End as an interpreter does: wait for threads, call what was registered, flush; no more."""
    import atexit

    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def keep_channel() -> None:
    """Programs that the code starts have no use for it."""
    for descriptor in (REPORTS, REQUESTS):
        os.set_inheritable(descriptor, False)


def main() -> None:
    """A cold interpreter: nothing was prepared."""
    keep_channel()
    Session(Channel()).serve()
