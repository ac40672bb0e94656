"""Runs Python code received over descriptor 4, and reports the result over descriptor 3.

The runner has the rights of the code it runs, so the supervisor trusts none of its reports.
Imports are late where they cost more than most code does; a warm interpreter has already imported
everything.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than most code takes to run
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from cellwall.sandbox.inside.channel import Channel, protect_channel
else:
    from _cellwall_channel import Channel, protect_channel

HOME = "/.cellwall"
MAX_TEXT = 65536
ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST
MEMORY_FILE_CLOEXEC = 1
INSTALLED = "/workspace/.cellwall-packages"
"""The packages of a user's directory; the workspace of a sandbox with a home has none."""
SITE_ENDINGS = ("/dist-packages", "/site-packages", "/opt/packages")


def load(name: str) -> Any:
    """A module of Cellwall that most code does not need; loaded when first needed."""
    if name not in sys.modules:
        sys.path.insert(0, HOME)  # before any package that has a module of this name
        try:
            __import__(name)
        finally:
            sys.path.remove(HOME)
    return sys.modules[name]


def show() -> Any:
    """The module for rich results."""
    return load("_cellwall_show")


def add_packages(paths: list[str]) -> None:
    """After the standard library, before the system's packages: requested packages win."""
    search_path: list[object] = [*sys.path]  # code may put any object there
    is_site = [isinstance(path, str) and path.endswith(SITE_ENDINGS) for path in search_path]
    place = [*is_site, True].index(True)
    sys.path[place:place] = [path for path in paths if path not in sys.path]


class InstalledPackages:
    """Finds packages that `pip install` put below the home without a new interpreter.

    Checked before each piece of code, and when an import finds no module: the same piece may have
    installed it.
    """

    def __init__(self) -> None:
        self._seen: tuple[str, int] | None = None

    def refresh(self) -> bool:
        """Whether the directory has changed since the last call."""
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        base = os.environ.get("PYTHONUSERBASE") or os.environ.get("HOME", "") + "/.local"
        if os.path.isdir(INSTALLED):  # may be newer than this interpreter's variables
            base = INSTALLED
        folder = f"{base}/lib/{version}/site-packages"
        try:
            seen = (folder, os.stat(folder).st_mtime_ns)
        except (OSError, ValueError):
            return False
        if seen == self._seen:
            return False
        self._seen = seen  # first: code in a .pth file may import modules, too
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
        """The last finder: no other finder knows the name."""
        if path is not None or not self.refresh():
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name)


class CodeSession:
    """The state of one interpreter: its `__main__` module, tools and results."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._count = 0
        self._sources: dict[str, str] = {}
        self._tools: Any = None
        self._may_interrupt = self._is_starting = self._is_interrupted = False
        self._shown: list[dict[str, object]] = []
        self._installed = InstalledPackages()
        self._module: Any = type(sys)("__main__")
        self._contexts: dict[str, tuple[Any, str]] = {}
        self._context = ""
        import builtins

        builtins.display = self._display  # type: ignore[attr-defined]  # as in notebooks
        sys.modules["__main__"] = self._module
        sys.argv = [""]
        sys.path.insert(0, "")

    def _interrupt(self, *_: object) -> None:
        """SIGINT is for the code: between two pieces of code there is nothing to interrupt, and the
        runner's own work must not stop in the middle."""
        if self._may_interrupt:
            raise KeyboardInterrupt
        self._is_interrupted = self._is_starting

    def serve(self) -> NoReturn:
        """Until the supervisor closes the pipe, or the only run of a one-shot cell is done."""
        from _signal import SIGINT, signal  # type: ignore[import-not-found]  # the C part alone

        signal(SIGINT, self._interrupt)
        sys.meta_path.append(self._installed)
        while True:
            frame = self._channel.wait("code")
            if frame is None:
                exit_interpreter(0)
            request, blob = frame
            code = self.run(request, blob)
            if request.get("once"):
                exit_interpreter(code)

    def run(self, request: dict[str, Any], blob: bytes) -> int:
        """Run one piece of code, report the result, and return its exit code."""
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
        self._enter(request.get("context", ""))
        if request["tools"]:
            if self._tools is None:
                self._tools = load("_cellwall_tools").Tools(self._channel, request["tools"])
            sys.modules["tools"] = self._tools  # so that `import tools` works too
            self._module.__dict__["tools"] = self._tools
        if stdin is not None:
            self._set_stdin(stdin)
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
        except SystemExit as stop:
            code = self._exit_code(stop)
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
                self._set_stdin(b"")  # unread input does not go to the next call
        self._finish(report)
        return code

    def _enter(self, context: str) -> None:
        """Change to the variables and the directory of this context."""
        if context == self._context:
            return
        try:
            self._contexts[self._context] = (self._module, os.getcwd())
        except OSError:  # the directory was removed
            self._contexts[self._context] = (self._module, "/workspace")
        known = self._contexts.get(context)
        self._context = context
        self._module, folder = known or (type(sys)("__main__"), "/workspace")
        sys.modules["__main__"] = self._module
        try:
            os.chdir(folder)
        except OSError:
            os.chdir("/workspace")

    def _restore(self, given: dict[str, str], before: dict[str, str | None]) -> None:
        """Variables of one call end with it, unless the code has changed them itself."""
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
                self._report_value(value, report)

    def _report_value(self, value: Any, report: dict[str, Any]) -> None:
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
        """`display` as in notebooks: a rich result that is not the last expression."""
        for value in values:
            self._shown.append(show().describe(value))

    def _finish(self, report: dict[str, Any]) -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            pass
        if "matplotlib.pyplot" in sys.modules:
            self._shown += show().figures(lambda x: load("_cellwall_charts").read_chart(x))
        report["results"], self._shown = self._shown, []
        if sys.modules.get("_cellwall_show") is not None and show().was_cut():
            report["cut"] = 1
        try:
            self._channel.write(report)
        except (TypeError, ValueError, RecursionError):
            short = {"done": report["done"], "exit": report["exit"], "results": [], "cut": 1}
            self._channel.write(short)

    def _set_stdin(self, stdin: bytes) -> None:
        try:
            descriptor = os.memfd_create("stdin", MEMORY_FILE_CLOEXEC)
        except OSError:  # without a cgroup the filter refuses memory files
            descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.write(descriptor, stdin)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)

    def _exit_code(self, stop: SystemExit) -> int:
        """The exit code of `sys.exit(...)`, computed as the interpreter does."""
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        sys.stderr.write(f"{stop.code}\n")
        return 1


def exit_interpreter(code: int) -> NoReturn:
    """Exit as an interpreter does: wait for threads, run `atexit` handlers, flush; no more."""
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


def main() -> None:
    """Entry point of a cold interpreter."""
    protect_channel()
    CodeSession(Channel()).serve()
