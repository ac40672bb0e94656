"""Functions of Python's library that run code, a command or a signal given as an argument. Pure.

Each is known by its module and its last name; a module of `DOUBTED` has too many ways in to list.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN

DOUBTED: Final = frozenset(
    [
        "ctypes",
        "_ctypes",
        "cffi",
        "code",
        "codeop",
        "doctest",
        "runpy",
        "marshal",
        "_posixsubprocess",
        "imp",
        "dill",
        "cloudpickle",
        "multiprocessing.util",
        "types.FunctionType",
        "types.CodeType",
        "antigravity",
    ]
)
MODULES_INSIDE: Final = frozenset(
    {
        *("os", "sys", "subprocess", "builtins", "shutil", "importlib", "posix", "ctypes"),
        *("pty", "runpy"),
    }
)
"""Modules that others hold as an attribute: `glob.os` is `os`."""
RUN_TEXT: Final = frozenset(("pexpect.run", "pexpect.runu"))
"""Their first argument is a command line."""
CODE_MODULES: Final = frozenset(("timeit", "cProfile", "profile", "pdb", "bdb"))
CODE_NAMES: Final = frozenset(
    [
        "timeit",
        "repeat",
        "Timer",
        "run",
        "runctx",
        "runeval",
        "runsource",
        "runcode",
        "push",
        "interact",
        "exec_module",
        "Profile",
        "Trace",
        "Pdb",
    ]
)
INTERPRETER_NAMES: Final = frozenset(("runsource", "runcode", "InteractiveConsole"))
COMMAND_SECOND: Final = frozenset(("subprocess_shell", "pipepager", "tempfilepager"))
BROWSERS: Final = frozenset(
    ("GenericBrowser", "BackgroundBrowser", "UnixBrowser", "register", "Mozilla", "Chrome")
)
UNPICKLERS: Final = frozenset(("loads", "load", "Unpickler", "read_pickle"))
PICKLES: Final = frozenset(("pickle", "_pickle", "cPickle", "jsonpickle", "shelve", "pandas"))
_SPECIAL_BITS: Final = 0o6000
_conversion = re.compile(r"%(?:\((\w+)\))?([-#0 +]*\d*(?:\.\d+)?[a-zA-Z%])")
_field = re.compile(r"\{\{|\}\}|\{(\w*)([^{}]*)\}")


def number(node: ast.expr | None) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def mode_words(path: str | None, mode: ast.expr | None) -> list[str | None] | None:
    """`chmod 4755 path` for `os.chmod(path, 0o4755)`; None for a mode without special bits."""
    value = number(mode)
    if value is None or not value & _SPECIAL_BITS:
        return None
    return ["chmod", f"{value & 0o7777:o}", path]


def of_user(path: str | None) -> str | None:
    """`~bob/x` as `expanduser` has it; `~/x` is left, for the home is known elsewhere."""
    if path is None or not path.startswith("~") or path == "~" or path.startswith("~/"):
        return path
    return "/root" + path[5:] if path.split("/")[0] == "~root" else f"/home/{path[1:]}"


def filled(template: str, values: Sequence[str | None]) -> str:
    """`template % values`; what is not a plain `%s` of a known text is unknown."""
    rest = iter(values)

    def one(found: re.Match[str]) -> str:
        if found[2] == "%":
            return "%"
        value = None if found[1] else next(rest, None)
        return value if value is not None and found[2] == "s" else UNKNOWN

    return _conversion.sub(one, template)


def formatted(template: str, values: Sequence[str | None], named: dict[str, str | None]) -> str:
    """`template.format(*values, **named)`."""
    count = iter(range(len(values)))

    def one(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        key, value = found[1], None
        if key.isdecimal():
            value = values[int(key)] if int(key) < len(values) else None
        elif key:
            value = named.get(key)
        elif (at := next(count, None)) is not None:
            value = values[at]
        return value if value is not None and not found[2] else UNKNOWN

    return _field.sub(one, template)


def pairs_of(node: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Keys and values that are written out in a dictionary: `{…}`, `dict(a=…)`, `a | b`."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield key, value
            else:
                yield from pairs_of(value)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from pairs_of(argument)
        for keyword in node.keywords:
            if keyword.arg:
                yield ast.Constant(keyword.arg), keyword.value
    elif isinstance(node, ast.BinOp):
        yield from pairs_of(node.left)
        yield from pairs_of(node.right)
