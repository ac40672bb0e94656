"""Commands and files in Python code, by its syntax tree. Pure.

Names are followed through imports and plain assignments, texts through `+`, `%`, f-strings, `join`,
`split`, `os.path.join` and `/` of paths. What is not followed is unknown.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Final

from cellwall.parsing.python_syntax import parse_python
from cellwall.policy.shell import started_python_doors as doors
from cellwall.policy.shell.starts import Starts
from cellwall.policy.shell.words import UNKNOWN

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
    [
        "os",
        "posix",
        "subprocess",
        "pty",
        "commands",
        "popen2",
        "asyncio",
        "pexpect",
        "builtins",
        "shutil",
        "importlib",
    ]
)
_FILE_MODULES: Final = frozenset(("os", "posix", "shutil", "distutils.file_util"))
_EVALUATE: Final = frozenset(("exec", "eval", "compile", "execfile", "__import__"))
_DELETE: Final = {
    "remove": "-f",
    "unlink": "-f",
    "rmdir": "-d",
    "removedirs": "-d",
    "rmtree": "-rf",
}
_CHANGE: Final = frozenset(
    [
        "chmod",
        "chown",
        "lchown",
        "truncate",
        "mkdir",
        "makedirs",
        "touch",
        "write_text",
        "write_bytes",
    ]
)
_PAIRS: Final = frozenset(
    [
        "copy",
        "copy2",
        "copyfile",
        "copytree",
        "move",
        "rename",
        "renames",
        "replace",
        "symlink",
        "link",
    ]
)
_PATH_READS: Final = frozenset(["read_text", "read_bytes"])
_MAX_DEPTH: Final = 4
_UNKNOWN_NAME: Final = "_not_known_"
_may_start = re.compile(
    r"\b(?:os|posix|subprocess|pty|shutil|ctypes|system|popen\w*|exec\w*|spawn\w*|eval|compile"
    r"|open|file|import_module|importlib|getattr|__\w+)\b|\\"
).search


def look_into_python(text: str, found: Starts, depth: int = 0) -> None:
    """Adds what the code starts, reads and writes. What is unknown stands in the code as a name."""
    text = text.replace(UNKNOWN, _UNKNOWN_NAME)
    try:
        tree = parse_python(text)
        _Look(tree, found, depth).run()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if _may_start(text):  # else it is `print x` of Python 2, or nothing that runs
            found.doubt("the Python code cannot be parsed")


class _Look:
    def __init__(self, tree: ast.AST, found: Starts, depth: int) -> None:
        self._nodes = list(ast.walk(tree))
        self._found = found
        self._depth = depth
        self._names: dict[str, str] = {}
        """What a name stands for, as a dotted name: `s` -> `os.system`."""
        self._values: dict[str, ast.expr] = {}
        """What a name is set to, where it is set once."""
        self._done: set[int] = set()
        """Names of starters that are called, or given another name that is followed."""

    def run(self) -> None:
        self._bind()
        for node in self._nodes:
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript) and (
                        self._resolve(target.value) == "os.environ"
                    ):
                        self._variable(target.slice, node.value)
        for node in self._nodes:
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in self._done:
                self._handed_on(node)

    def _bind(self) -> None:
        stored = Counter(
            node.id
            for node in self._nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    whole = f"{node.module or ''}.{alias.name}"
                    self._names[alias.asname or alias.name] = whole
                    if alias.name == "*" and node.module in _MODULES:
                        self._names |= {each: f"{node.module}.{each}" for each in _STARTERS}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and stored[target.id] == 1:
                    self._values[target.id] = node.value
                    if (name := self._resolve(node.value)) and _is_telling(name):
                        self._names[target.id] = name
                        self._done.add(id(node.value))

    # --- names

    def _resolve(self, node: ast.expr, depth: int = 0) -> str | None:
        """The dotted name that an expression stands for; `?` for an object that is not known."""
        if depth > 16:
            return None
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._resolve(node.value, depth + 1) or '?'}.{node.attr}"
        if isinstance(node, ast.Call):
            called = self._resolve(node.func, depth + 1) or "?"
            last = called.rpartition(".")[2]
            first = self._text(node.args[0]) if node.args else None
            if last in ("__import__", "import_module") and first and UNKNOWN not in first:
                return first
            if last == "getattr" and len(node.args) > 1:
                name = self._text(node.args[1])
                whole = self._resolve(node.args[0], depth + 1) or "?"
                return f"{whole}.{name}" if name and UNKNOWN not in name else None
        if isinstance(node, ast.Subscript):
            index = self._text(node.slice)
            return index if index and UNKNOWN not in index else None
        return None

    def _handed_on(self, node: ast.Attribute | ast.Name) -> None:
        name = self._resolve(node) or ""
        module, _, last = name.rpartition(".")
        if isinstance(node.ctx, ast.Load) and last in _STARTERS and module in _MODULES:
            self._found.doubt(f"it hands on {name}, which starts commands")

    # --- calls

    def _call(self, node: ast.Call) -> None:
        name = self._resolve(node.func) or "?"
        module, _, last = name.rpartition(".")
        self._done.add(id(node.func))
        if isinstance(node.func, ast.Call | ast.Subscript) and name == "?":
            self._found.doubt("it calls what is put together while it runs")
        if last == "getattr" and len(node.args) > 1 and self._resolve(node) is None:
            self._found.doubt("it asks for a name that is put together while it runs")
        if last in _EVALUATE and module in ("", "builtins", "__builtins__", "?"):
            self._evaluate(last, node)
        elif self._is_door(module, last, node):
            pass
        elif last in _STARTERS and (last not in _ONLY_OF_SUBPROCESS or module == "subprocess"):
            self._start(last, node)
        else:
            self._touch(module, last, node)

    def _is_door(self, module: str, name: str, node: ast.Call) -> bool:
        """Whether it is a call of the library that runs what it is given."""
        texts = [self._text(each) for each in node.args]
        whole = f"{module}.{name}"
        if any(whole == each or whole.startswith(f"{each}.") for each in doors.DOUBTED):
            self._found.doubt(f"it uses {whole}, which can start what is not written out")
        elif name in doors.INTERPRETER_NAMES or (
            module in doors.CODE_MODULES and name in doors.CODE_NAMES
        ):
            for given in (*node.args, *(each.value for each in node.keywords)):
                self._given_code(whole, given)
        elif name == "subprocess_exec":
            self._found.command(texts[1:])
        elif name in doors.COMMAND_SECOND:
            self._found.script(texts[1] if len(texts) > 1 else None)
        elif module == "webbrowser" and (name in doors.BROWSERS or (name == "get" and node.args)):
            command = texts[0] if texts else None
            self._found.script(None if command is None else command.replace("%s", ""))
        elif name in doors.UNPICKLERS and module in doors.PICKLES:
            self._unpickle(whole, node)
        elif name in ("kill", "killpg") and module in _FILE_MODULES:
            process = doors.number(node.args[0]) if node.args else None
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
            first = self._values.get(first.id, first)
        opened = isinstance(first, ast.Call) and self._resolve(first.func) == "open"
        is_file = opened or (isinstance(first, ast.Name) and name.endswith(".load"))
        if not (is_file or name in ("pandas.read_pickle", "shelve.open")):
            self._found.doubt(f"it gives {name} data that can start anything")

    def _variables(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.Name):
            node = self._values.get(node.id)
        for key, value in doors.pairs_of(node):
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
        self._variables(keywords.get("env"))
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

    def _touch(self, module: str, name: str, node: ast.Call) -> None:
        first = self._text(node.args[0]) if node.args else None
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        own = self._text(owner)
        path = own if own is not None else first
        is_of_files = module in _FILE_MODULES
        if name in ("chdir", "fchdir") and first:
            self._found.folders.append(first)
        elif name == "open":
            mode_at = 0 if own is not None else 1
            given = [self._text(each) for each in node.args[mode_at : mode_at + 1]]
            given += [self._text(each.value) for each in node.keywords if each.arg == "mode"]
            is_read = not given or (given[0] is not None and not set("wax+") & set(given[0]))
            self._found.file("read", path)
            if not is_read:
                self._found.file("write", path)
        elif name in _DELETE and (is_of_files or (own is not None and not node.args)):
            self._found.delete(path, _DELETE[name])
        elif name in _CHANGE and (is_of_files or own is not None):
            self._found.file("write", path)
            mode = node.args[0 if own is not None else 1 :][:1] if "chmod" in name else []
            mode += [each.value for each in node.keywords if each.arg == "mode"]
            if words := doors.mode_words(path, mode[0] if mode else None):
                self._found.command(words)
        elif name in _PATH_READS:
            self._found.file("read", own)
        elif name in _PAIRS and is_of_files and len(node.args) > 1:
            self._found.file("read", first)
            self._found.file("write", self._text(node.args[1]))
            if name in ("move", "rename", "renames", "replace"):
                self._found.file("write", first)

    # --- texts

    def _text(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """The text of an expression, unknown parts marked; None if it may be no text at all."""
        if node is None or depth > 16:
            return None
        if isinstance(node, ast.Constant):
            value = node.value
            text = value if isinstance(value, str) else _decoded(value)
            return None if text is None else text.replace(_UNKNOWN_NAME, UNKNOWN)
        if isinstance(node, ast.Name):
            return self._text(self._values.get(node.id), depth + 1)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self._text(each.value if isinstance(each, ast.FormattedValue) else each, depth + 1)
                for each in node.values
            ]
            return "".join(UNKNOWN if part is None else part for part in parts)
        if isinstance(node, ast.BinOp):
            return self._sum(node, depth + 1)
        if isinstance(node, ast.Call):
            return self._called_text(node, depth + 1)
        if isinstance(node, ast.Subscript) and self._resolve(node) == "HOME":
            return "~"
        return None

    def _sum(self, node: ast.BinOp, depth: int) -> str | None:
        left, right = self._text(node.left, depth), self._text(node.right, depth)
        if isinstance(node.op, ast.Add) and not (left is None and right is None):
            return (UNKNOWN if left is None else left) + (UNKNOWN if right is None else right)
        if isinstance(node.op, ast.Div) and not (left is None and right is None):
            return posixpath.join(left or UNKNOWN, right or UNKNOWN)
        if isinstance(node.op, ast.Mod) and left is not None:
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return doors.filled(left, [self._text(each, depth) for each in values])
        return None

    def _called_text(self, node: ast.Call, depth: int) -> str | None:
        name = (self._resolve(node.func) or "?").rpartition(".")[2]
        texts = [self._text(each, depth) for each in node.args]
        if name in ("expanduser", "Path", "PosixPath", "str", "abspath", "realpath", "resolve"):
            if isinstance(node.func, ast.Attribute) and not texts:
                return self._text(node.func.value, depth)
            return posixpath.join(*(each or UNKNOWN for each in texts)) if texts else None
        if name == "format" and isinstance(node.func, ast.Attribute):
            template = self._text(node.func.value, depth)
            named = {each.arg: self._text(each.value, depth) for each in node.keywords if each.arg}
            return None if template is None else doors.formatted(template, texts, named)
        if name == "home" and not texts:
            return "~"
        if name in ("getenv", "get") and texts[:1] == ["HOME"]:
            return "~"
        if name == "join" and isinstance(node.func, ast.Attribute):
            glue = self._text(node.func.value, depth)
            if glue is None:
                return posixpath.join(*(each or UNKNOWN for each in texts)) if texts else None
            words = self._list(node.args[0]) if node.args else None
            return None if words is None else glue.join(each or UNKNOWN for each in words)
        return None

    def _list(self, node: ast.expr, depth: int = 0) -> list[str | None] | None:
        """The elements of a list of texts; None if it may be any list."""
        if depth > 8:
            return None
        if isinstance(node, ast.Name) and node.id in self._values:
            return self._list(self._values[node.id], depth + 1)
        if isinstance(node, ast.List | ast.Tuple):
            if any(isinstance(each, ast.Starred) for each in node.elts):
                return None
            return [self._text(each) for each in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._list(node.left, depth + 1), self._list(node.right, depth + 1)
            return None if left is None or right is None else [*left, *right]
        if isinstance(node, ast.Call):
            name = (self._resolve(node.func) or "?").rpartition(".")[2]
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            text = self._text(node.args[0] if node.args else owner)
            if name == "split" and text is not None and UNKNOWN not in text:
                return list(shlex.split(text))
        return None


def _is_telling(name: str) -> bool:
    """A module or a function that starts commands, under a name of its own."""
    module, _, last = name.rpartition(".")
    return name in _MODULES or (
        last in _STARTERS | _EVALUATE and (module in _MODULES or not module)
    )


def _decoded(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None
