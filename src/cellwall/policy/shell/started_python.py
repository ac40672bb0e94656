"""Commands and files in Python code, by its syntax tree. Pure.

What is written out is found here (started_python_texts.py follows names and texts). What the code
uses besides, and which names of files it puts together, is looked at in started_python_reach.py.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Sequence
from typing import Final

from cellwall.parsing.python_syntax import parse_python
from cellwall.policy.shell import started_python_doors as doors
from cellwall.policy.shell.started_python_paths import Paths
from cellwall.policy.shell.started_python_reach import ask_about_reach
from cellwall.policy.shell.started_python_texts import UNKNOWN_NAME, Meanings
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
_WRITES: Final = frozenset(["touch", "write_text", "write_bytes"])
_LINKS: Final = frozenset(["symlink_to", "hardlink_to", "link_to"])
_OPENERS: Final = _FILE_MODULES | frozenset(
    ("", "io", "codecs", "builtins", "gzip", "bz2", "lzma", "tokenize")
)
_FIRST: Final = ("path", "file", "src", "filename", "name")
"""Keywords that name the file, where it is not the first argument."""
_MAX_DEPTH: Final = 4
_may_start = re.compile(
    r"\b(?:os|posix|subprocess|pty|shutil|ctypes|system|popen\w*|exec\w*|spawn\w*|eval|compile"
    r"|open|file|import_module|importlib|getattr|__\w+)\b|\\"
).search


def look_into_python(text: str, found: Starts, depth: int = 0) -> None:
    """Adds what the code starts, reads and writes. What is unknown stands in the code as a name."""
    text = text.replace(UNKNOWN, UNKNOWN_NAME)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
        self._meanings = Meanings(
            self._nodes, modules=_MODULES, starters=_STARTERS, evaluators=_EVALUATE
        )
        self._resolve, self._text = self._meanings.resolve, self._meanings.text
        self._list = self._meanings.list_of
        self._paths = Paths(self._nodes, self._meanings)
        self._done: set[int] = set(self._meanings.aliased)
        """Names of starters that are called, or given another name that is followed."""

    def run(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript) and (
                        self._resolve(target.value) == "os.environ"
                    ):
                        self._variable(target.slice, node.value)
            elif isinstance(node, ast.BinOp | ast.JoinedStr):
                self._found.text(self._text(node))
            elif isinstance(node, ast.AugAssign) and self._resolve(node.target) == "os.environ":
                self._variables(node.value)
        for node in self._nodes:
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in self._done:
                self._handed_on(node)
        ask_about_reach(self._nodes, self._meanings, self._found)

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
        if last in ("join", "format"):
            self._found.text(self._text(node))
        if isinstance(node.func, ast.Call | ast.Subscript) and name == "?":
            self._found.doubt("it calls what is put together while it runs")
        if last == "getattr" and len(node.args) > 1 and self._resolve(node) is None:
            self._found.doubt("it asks for a name that is put together while it runs")
        if last in _EVALUATE and module in ("", "builtins", "__builtins__", "?"):
            self._evaluate(last, node)
        elif name == "platform.system" or self._is_door(module, last, node):
            pass
        elif name in doors.RUN_TEXT:
            self._found.script(self._text(node.args[0] if node.args else None))
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
            first = self._meanings.values.get(first.id, first)
        opened = isinstance(first, ast.Call) and self._resolve(first.func) == "open"
        is_file = opened or (isinstance(first, ast.Name) and name.endswith(".load"))
        if not (is_file or name in ("pandas.read_pickle", "shelve.open")):
            self._found.doubt(f"it gives {name} data that can start anything")

    def _variables(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.Name):
            node = self._meanings.values.get(node.id)
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
        named = {each.arg: each.value for each in node.keywords}
        given = node.args[0] if node.args else None
        given = given or next((named[each] for each in _FIRST if each in named), None)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        own, first = self._text(owner), self._text(given)
        is_of_files = module in _FILE_MODULES
        is_path = own is not None or (owner is not None and not is_of_files and not module)
        place = owner if own is not None or given is None else given
        if name in ("chdir", "fchdir") and first:
            self._found.folders.append(first)
        elif name in ("load_dotenv", "dotenv_values", "find_dotenv") and not node.args:
            self._found.file("read", ".env")
        elif name in ("glob", "iglob", "rglob") and first:
            between = ("**",) if name == "rglob" else ()
            self._found.pattern(posixpath.join(own or "", *between, first))
        elif name == "open" and (node.args or node.keywords or owner is not None):
            self._open(module, node, owner, given)
        elif name in _DELETE and (is_of_files or (owner is not None and not node.args)):
            self._found.delete(self._path(place), _DELETE[name])
        elif name in _CHANGE and (is_of_files or is_path or name in _WRITES):
            target = owner if name in _WRITES and not is_of_files else place
            path = self._path(target)
            self._found.file("write", path)
            mode = node.args[0 if own is not None else 1 :][:1] if "chmod" in name else []
            mode += [each.value for each in node.keywords if each.arg == "mode"]
            if words := doors.mode_words(path, mode[0] if mode else None):
                self._found.command(words)
        elif name in _PATH_READS:
            self._found.file("read", self._path(owner))
        elif name in _PAIRS and is_of_files and len(node.args) + len(node.keywords) > 1:
            second = node.args[1] if len(node.args) > 1 else named.get("dst")
            self._found.file("read", self._path(given))
            self._found.file("write", self._path(second))
            if name in ("move", "rename", "renames", "replace"):
                self._found.file("write", first)
        elif name in _LINKS and owner is not None and node.args:
            self._found.file("read", self._path(given))

    def _open(
        self, module: str, node: ast.Call, owner: ast.expr | None, given: ast.expr | None
    ) -> None:
        """`open(path, mode)`, `Path(path).open(mode)`, `module.open(path)`."""
        is_own = self._text(owner) is not None or (owner is not None and given is None)
        place = owner if is_own else given
        mode_at = 0 if is_own else 1
        modes = [self._text(each) for each in node.args[mode_at : mode_at + 1]]
        modes += [self._text(each.value) for each in node.keywords if each.arg == "mode"]
        if module in _FILE_MODULES:  # flags, not a mode
            modes = [None] if "O_" in ast.dump(node) and "O_RDONLY" not in ast.dump(node) else []
        is_read = not modes or (modes[0] is not None and not set("wax+") & set(modes[0]))
        if owner is not None and not is_own and module not in _OPENERS:
            return  # `Image.open("x.png")`: its text is judged as a name like any other
        path = self._path(place)
        self._found.file("read", path)
        if not is_read:
            self._found.file("write", path)

    def _path(self, node: ast.expr | None) -> str | None:
        """The name of a file; a person is asked about one that is put together."""
        text = self._text(node)
        if (text is None or UNKNOWN in text) and self._paths.is_put_together(node):
            self._found.ask("it puts the name of a file together while it runs; write it out")
        if text is None:
            return self._paths.listed_below(node)
        return text
