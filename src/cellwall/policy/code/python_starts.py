"""Commands and files in Python code, by its syntax tree. Pure.

What is written out is found here (parsing/python/names.py follows names and texts). What the code
uses besides, and which names of files it puts together, is looked at in python_reach.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Final

from cellwall.parsing.python.names import IMPORTS, UNKNOWN_NAME, UNKNOWN_PATH, PythonNames
from cellwall.parsing.python.syntax import dictionary_items, number, parse_python
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.python_files import FILE_MODULES, FileCalls
from cellwall.policy.code.python_reach import MODULES_INSIDE, ask_about_reach
from cellwall.policy.code.sieve import Starts

_SHELL_TEXT: Final = frozenset(
    ["system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell", "runscript"]
)
_VECTOR: Final = frozenset(["Popen", "check_call", "check_output", "run", "call"])
_ONLY_OF_SUBPROCESS: Final = frozenset(("run", "call"))
_PATH_THEN_VECTOR: Final = frozenset(
    ["execv", "execve", "execvp", "execvpe", "posix_spawn", "posix_spawnp"]
)
_PATH_THEN_WORDS: Final = frozenset(
    ["execl", "execle", "execlp", "execlpe", "create_subprocess_exec"]
)
_MODE_FIRST: Final = frozenset(
    f"spawn{how}" for how in ["v", "ve", "vp", "vpe", "l", "le", "lp", "lpe"]
)
_SPAWN: Final = frozenset(("spawn", "spawnu", "startfile"))
_STARTERS: Final = (
    _SHELL_TEXT | _VECTOR | _PATH_THEN_VECTOR | _PATH_THEN_WORDS | _MODE_FIRST | _SPAWN
)
_MODULES: Final = frozenset(
    {
        *("os", "posix", "subprocess", "pty", "commands", "popen2", "asyncio", "pexpect"),
        *("builtins", "shutil", "importlib"),
    }
)
_DOUBTED: Final = frozenset(
    {
        *("ctypes", "_ctypes", "cffi", "code", "codeop", "doctest", "runpy", "marshal", "imp"),
        *("_posixsubprocess", "dill", "cloudpickle", "multiprocessing.util", "antigravity"),
        *("types.FunctionType", "types.CodeType"),
    }
)
_RUN_TEXT: Final = frozenset(("pexpect.run", "pexpect.runu"))
"""Their first argument is a command line."""
_CODE_MODULES: Final = frozenset(("timeit", "cProfile", "profile", "pdb", "bdb"))
_CODE_NAMES: Final = frozenset(
    {
        *("timeit", "repeat", "Timer", "run", "runctx", "runeval", "runsource", "runcode"),
        *("push", "interact", "exec_module", "Profile", "Trace", "Pdb"),
    }
)
_INTERPRETER_NAMES: Final = frozenset(("runsource", "runcode", "InteractiveConsole"))
_COMMAND_SECOND: Final = frozenset(("subprocess_shell", "pipepager", "tempfilepager"))
_BROWSERS: Final = frozenset(
    ("GenericBrowser", "BackgroundBrowser", "UnixBrowser", "register", "Mozilla", "Chrome")
)
_UNPICKLERS: Final = frozenset(("loads", "load", "Unpickler", "read_pickle"))
_PICKLES: Final = frozenset(("pickle", "_pickle", "cPickle", "jsonpickle", "shelve", "pandas"))
_EVALUATE: Final = frozenset(("exec", "eval", "compile", "execfile", "__import__"))
_NAMED_GETTERS: Final = IMPORTS | {"getattr"}
_MAX_DEPTH: Final = 4
_may_start = re.compile(
    r"\b(?:os|posix|subprocess|pty|shutil|ctypes|system|popen\w*|exec\w*|spawn\w*|eval|compile"
    r"|open|file|import_module|importlib|getattr|__\w+)\b|\\"
).search


def look_into_python(text: str, found: Starts, depth: int = 0) -> None:
    """Adds what the code starts, reads and writes. What is unknown stands in the code as a name."""
    text = text.replace(UNKNOWN, UNKNOWN_NAME)
    try:
        tree = parse_python(text)
        _StartFinder(tree, found, depth).run()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if _may_start(text):  # else it is `print x` of Python 2, or nothing that runs
            found.doubt("the Python code cannot be parsed")


def _is_followed(path: str) -> bool:
    """A module or a function that starts commands, or the environment that they inherit."""
    module, _, last = path.rpartition(".")
    if path in _MODULES or path == "os.environ":
        return True
    return (not module or module in _MODULES) and last in _STARTERS | _EVALUATE


class _StartFinder:
    def __init__(self, tree: ast.AST, found: Starts, depth: int) -> None:
        self._nodes = list(ast.walk(tree))
        self._found = found
        self._depth = depth
        self._names = PythonNames(
            self._nodes,
            held_modules=MODULES_INSIDE,
            starred=dict.fromkeys(_MODULES, _STARTERS),
            follows=_is_followed,
            is_any_item=True,
        )
        self._path, self._text = self._names.path, self._names.text
        self._list = self._names.list_of
        self._files = FileCalls(self._nodes, self._names, found)
        self._done: set[int] = set(self._names.aliased)
        """Names of starters that are called, or given another name that is followed."""

    def run(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript) and (
                        self._path(target.value) == "os.environ"
                    ):
                        self._variable(target.slice, node.value)
            elif isinstance(node, ast.BinOp | ast.JoinedStr):
                self._found.text(self._text(node))
            elif isinstance(node, ast.AugAssign) and self._path(node.target) == "os.environ":
                self._variables(node.value)
        for node in self._nodes:
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in self._done:
                self._handed_on(node)
        ask_about_reach(self._nodes, self._names, self._found)

    def _handed_on(self, node: ast.Attribute | ast.Name) -> None:
        name = self._path(node)
        module, _, last = name.rpartition(".")
        if isinstance(node.ctx, ast.Load) and last in _STARTERS and module in _MODULES:
            self._found.doubt(f"it hands on {name}, which starts commands")

    # --- calls

    def _call(self, node: ast.Call) -> None:
        name = self._path(node.func)
        module, _, last = name.rpartition(".")
        self._done.add(id(node.func))
        if last in ("join", "format"):
            self._found.text(self._text(node))
        if self._is_put_together(node.func, name):
            self._found.doubt("it calls what is put together while it runs")
        if last == "getattr" and len(node.args) > 1 and self._path(node) == UNKNOWN_PATH:
            self._found.doubt("it asks for a name that is put together while it runs")
        if last in _EVALUATE and module in ("", "builtins", "__builtins__", UNKNOWN_PATH):
            self._evaluate(last, node)
        elif name == "platform.system" or self._is_door(module, last, node):
            pass
        elif name in _RUN_TEXT:
            self._found.script(self._text(node.args[0] if node.args else None))
        elif last in _STARTERS and (last not in _ONLY_OF_SUBPROCESS or module == "subprocess"):
            self._start(last, node)
        else:
            self._files.look_at(module, last, node)

    def _is_put_together(self, function: ast.expr, name: str) -> bool:
        """Whether a function comes from a call or an index, other than by a name written out."""
        if isinstance(function, ast.Subscript):
            return name == UNKNOWN_PATH
        if not isinstance(function, ast.Call):
            return False
        getter = self._path(function.func).rpartition(".")[2]
        return name == UNKNOWN_PATH or getter not in _NAMED_GETTERS

    def _is_door(self, module: str, name: str, node: ast.Call) -> bool:
        """Whether it is a call of the library that runs what it is given."""
        texts = [self._text(each) for each in node.args]
        whole = f"{module}.{name}"
        if any(whole == each or whole.startswith(f"{each}.") for each in _DOUBTED):
            self._found.doubt(f"it uses {whole}, which can start what is not written out")
        elif name in _INTERPRETER_NAMES or (module in _CODE_MODULES and name in _CODE_NAMES):
            for given in (*node.args, *(each.value for each in node.keywords)):
                self._given_code(whole, given)
        elif name == "subprocess_exec":
            self._found.command(texts[1:])
        elif name in _COMMAND_SECOND:
            self._found.script(texts[1] if len(texts) > 1 else None)
        elif module == "webbrowser" and (name in _BROWSERS or (name == "get" and node.args)):
            command = texts[0] if texts else None
            self._found.script(None if command is None else command.replace("%s", ""))
        elif name in _UNPICKLERS and module in _PICKLES:
            self._unpickle(whole, node)
        elif name in ("kill", "killpg") and module in FILE_MODULES:
            process = number(node.args[0]) if node.args else None
            if process is not None and process <= 1:
                self._found.command(["kill", "-9", "--", str(process)])
        elif name in ("putenv", "setdefault", "update") and module in ("os", "os.environ"):
            if name != "update" and len(node.args) > 1:
                self._variable(node.args[0], node.args[1])
            self._variables(node)
        else:
            return False
        return True

    def _given_code(self, name: str, node: ast.expr) -> None:
        """An argument that may be code: a text, or a function of the code itself."""
        text = self._text(node)
        if text is not None and UNKNOWN not in text and self._depth < _MAX_DEPTH:
            look_into_python(text, self._found, self._depth + 1)
        elif text is not None or not isinstance(node, ast.Lambda | ast.Name | ast.Constant):
            self._found.doubt(f"it gives {name} what is put together while it runs")

    def _unpickle(self, name: str, node: ast.Call) -> None:
        """A pickle is code. One of a file is a file's matter, any other is unknown."""
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Name):
            first = self._names.values.get(first.id, first)
        opened = isinstance(first, ast.Call) and self._path(first.func) == "open"
        is_file = opened or (isinstance(first, ast.Name) and name.endswith(".load"))
        if not (is_file or name in ("pandas.read_pickle", "shelve.open")):
            self._found.doubt(f"it gives {name} data that can start anything")

    def _environment(self, node: ast.expr | None) -> None:
        """What a command gets as its variables, with what is put into that table elsewhere."""
        if isinstance(node, ast.Name):
            for each in self._nodes:
                target = each.targets[0] if isinstance(each, ast.Assign) else None
                if isinstance(target, ast.Subscript) and isinstance(each, ast.Assign):
                    owner = target.value
                    if isinstance(owner, ast.Name) and owner.id == node.id:
                        self._variable(target.slice, each.value)
            node = self._names.values.get(node.id, node)
        if isinstance(node, ast.Name):
            self._found.ask("it starts a command with variables that are put together")
        self._variables(node)

    def _variables(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.Name):
            node = self._names.values.get(node.id)
        for key, value in dictionary_items(node):
            self._variable(key, value)

    def _variable(self, key: ast.expr, value: ast.expr) -> None:
        """Judged as `env NAME=value` is, for what it starts inherits it."""
        name, text = self._text(key), self._text(value)
        if name and UNKNOWN not in name and "=" not in name:
            self._found.command(["env", f"{name}={UNKNOWN if text is None else text}", "true"])

    def _evaluate(self, name: str, node: ast.Call) -> None:
        text = self._text(node.args[0]) if node.args else None
        if text is None or UNKNOWN in text:
            self._found.doubt(f"it gives {name} what is put together while it runs")
        elif name != "__import__":
            if self._depth >= _MAX_DEPTH:
                self._found.doubt("code stands in code too deeply")
            else:
                look_into_python(text, self._found, self._depth + 1)

    def _start(self, name: str, node: ast.Call) -> None:
        keywords = {each.arg: each.value for each in node.keywords}
        arguments: Sequence[ast.expr] = node.args
        if not arguments and "args" in keywords:
            arguments = (keywords["args"],)
        if not arguments and "cmd" in keywords:
            arguments = (keywords["cmd"],)
        if folder := self._text(keywords.get("cwd")):
            self._found.folders.append(folder)
        self._environment(keywords.get("env"))
        if None in keywords or "executable" in keywords or not arguments:
            self._found.doubt("it starts a command in a way that is not plain")
        elif name in _SHELL_TEXT:
            self._found.script(self._text(arguments[0]))
        elif name in _PATH_THEN_VECTOR:
            self._path_and_vector(arguments)
        elif name in _PATH_THEN_WORDS:
            words = [self._text(each) for each in arguments]
            self._found.command(words if name.startswith("create") else [words[0], *words[2:]])
        elif name in _MODE_FIRST:
            if name.startswith("spawnv"):
                self._path_and_vector(arguments[1:])
            else:
                words = [self._text(each) for each in arguments[1:]]
                self._found.command([words[0], *words[2:]] if words else None)
        else:
            self._vector(arguments[0], keywords.get("shell"))

    def _path_and_vector(self, arguments: Sequence[ast.expr]) -> None:
        words = self._list(arguments[1]) if len(arguments) > 1 else None
        self._found.command(None if words is None else [self._text(arguments[0]), *words[1:]])

    def _vector(self, first: ast.expr, shell: ast.expr | None) -> None:
        is_plain = shell is None or (isinstance(shell, ast.Constant) and not shell.value)
        text = self._text(first)
        if text is not None:
            # Without a shell the whole text is the program's name; pexpect splits it.
            self._found.script(text)
            return
        words = self._list(first)
        if is_plain or words is None:
            self._found.command(words)
        else:
            self._found.script(words[0] if words else None)
