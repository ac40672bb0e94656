"""Calls of Python code that read, write, list or delete files, by the names of functions. Pure."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cellwall.parsing.python.names import PythonNames
from cellwall.parsing.python.syntax import number
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.python_paths import Paths
from cellwall.policy.code.sieve import Starts

FILE_MODULES: Final = frozenset(("os", "posix", "shutil", "distutils.file_util"))
_DELETE: Final = {
    "remove": "-f",
    "unlink": "-f",
    "rmdir": "-d",
    "removedirs": "-d",
    "rmtree": "-rf",
}
_CHANGE: Final = frozenset(
    {
        *("chmod", "chown", "lchown", "truncate", "mkdir", "makedirs", "touch", "write_text"),
        *("write_bytes",),
    }
)
_PAIRS: Final = frozenset(
    {
        *("copy", "copy2", "copyfile", "copytree", "move", "rename", "renames", "replace"),
        *("symlink", "link"),
    }
)
_PATH_READS: Final = frozenset(["read_text", "read_bytes"])
_WRITES: Final = frozenset(["touch", "write_text", "write_bytes"])
_LINKS: Final = frozenset(["symlink_to", "hardlink_to", "link_to"])
_OPENERS: Final = FILE_MODULES | frozenset(
    ("", "io", "codecs", "builtins", "gzip", "bz2", "lzma", "tokenize")
)
_FIRST: Final = ("path", "file", "src", "filename", "name")
"""Keywords that name the file, where it is not the first argument."""
_SETTINGS: Final = frozenset(["load_dotenv", "dotenv_values", "find_dotenv"])
_SPECIAL_BITS: Final = 0o6000
_UNPACKING: Final = {"extractall": 0, "unpack_archive": 1}
"""Where the folder stands among the arguments."""


@dataclass(frozen=True, slots=True)
class _FileCall:
    """One call, as far as it may be about a file."""

    module: str
    name: str
    node: ast.Call
    owner: ast.expr | None
    """What stands before the dot: a path, a module, or any other object."""
    own: str | None
    """The owner's text."""
    given: ast.expr | None
    """The first argument, or the keyword that stands for it."""
    first: str | None
    """Its text."""
    named: Mapping[str | None, ast.expr] = field(default_factory=dict)

    @property
    def is_of_files(self) -> bool:
        return self.module in FILE_MODULES

    @property
    def place(self) -> ast.expr | None:
        return self.owner if self.own is not None or self.given is None else self.given


class FileCalls:
    """The file calls of one piece of code."""

    def __init__(self, nodes: Sequence[ast.AST], names: PythonNames, found: Starts) -> None:
        self._text = names.text
        self._paths = Paths(nodes, names)
        self._found = found

    def look_at(self, module: str, name: str, node: ast.Call) -> None:
        """Adds the files of one call."""
        named = {each.arg: each.value for each in node.keywords}
        given = node.args[0] if node.args else None
        given = given or next((named[each] for each in _FIRST if each in named), None)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        texts = self._text(owner), self._text(given)
        call = _FileCall(module, name, node, owner, texts[0], given, texts[1], named)
        if not (self._is_of_folder(call) or self._is_of_content(call)):
            self._change(call)

    def _is_of_folder(self, call: _FileCall) -> bool:
        """Calls about a folder, or what lies in it."""
        name, first, found = call.name, call.first, self._found
        if name in ("chdir", "fchdir") and (call.is_of_files or first):
            found.folders.append(first or "")
            if first is None or UNKNOWN in first:
                found.ask("it changes to a folder whose name is put together")
        elif name in _UNPACKING:
            rest = call.node.args[_UNPACKING[name] :][:1]
            into = rest[0] if rest else call.named.get("path") or call.named.get("extract_dir")
            if into is not None:
                found.file("write", posixpath.join(self._path(into) or "", "x"))
        elif name in ("glob", "iglob", "rglob") and first:
            between = ("**",) if name == "rglob" else ()
            found.pattern(posixpath.join(call.own or "", *between, first))
        else:
            return False
        return True

    def _is_of_content(self, call: _FileCall) -> bool:
        """Calls that open a file, or read it as a whole."""
        name, node, owner = call.name, call.node, call.owner
        if name in _SETTINGS and not node.args:
            self._found.file("read", ".env")
        elif name == "open" and (node.args or node.keywords or owner is not None):
            self._open(call)
        elif name in _PATH_READS:
            self._found.file("read", self._path(owner))
        elif name in _LINKS and owner is not None and node.args:
            self._found.file("read", self._path(call.given))
        else:
            return False
        return True

    def _change(self, call: _FileCall) -> None:
        """Calls that write, move or delete."""
        name, node, owner, named = call.name, call.node, call.owner, call.named
        is_path = call.own is not None or (owner is not None and not call.module)
        if name in _DELETE and (call.is_of_files or (owner is not None and not node.args)):
            self._found.delete(self._path(call.place), _DELETE[name])
        elif name in _CHANGE and (call.is_of_files or is_path or name in _WRITES):
            target = owner if name in _WRITES and not call.is_of_files else call.place
            path = self._path(target)
            self._found.file("write", path)
            mode = node.args[0 if call.own is not None else 1 :][:1] if "chmod" in name else []
            mode += [each.value for each in node.keywords if each.arg == "mode"]
            if words := _mode_words(path, mode[0] if mode else None):
                self._found.command(words)
        elif name in _PAIRS and call.is_of_files and len(node.args) + len(named) > 1:
            second = node.args[1] if len(node.args) > 1 else named.get("dst")
            self._found.file("read", self._path(call.given))
            self._found.file("write", self._path(second))
            if name in ("move", "rename", "renames", "replace"):
                self._found.file("write", call.first)

    def _open(self, call: _FileCall) -> None:
        """`open(path, mode)`, `Path(path).open(mode)`, `module.open(path)`."""
        node, owner = call.node, call.owner
        is_own = call.own is not None or (owner is not None and call.given is None)
        if owner is not None and not is_own and call.module not in _OPENERS:
            return  # `Image.open("x.png")`: its text is judged as a name like any other
        mode_at = 0 if is_own else 1
        modes = [*node.args[mode_at : mode_at + 1], *filter(None, [call.named.get("mode")])]
        is_read = all(map(_is_flag_to_read if call.is_of_files else self._is_mode_to_read, modes))
        path = self._path(owner if is_own else call.given)
        self._found.file("read", path)
        if not is_read:
            self._found.file("write", path)

    def _is_mode_to_read(self, node: ast.expr) -> bool:
        mode = self._text(node)
        return mode is not None and not set("wax+") & set(mode)

    def _path(self, node: ast.expr | None) -> str | None:
        """The name of a file; a person is asked about one that is put together."""
        text = self._text(node)
        if (text is None or UNKNOWN in text) and self._paths.is_put_together(node):
            self._found.ask("it puts the name of a file together while it runs; write it out")
        return self._paths.listed_below(node) if text is None else text


def _is_flag_to_read(node: ast.expr) -> bool:
    """`os.O_RDONLY`, or 0."""
    return number(node) == 0 or (isinstance(node, ast.Attribute) and node.attr == "O_RDONLY")


def _mode_words(path: str | None, mode: ast.expr | None) -> list[str | None] | None:
    """`chmod 4755 path` for `os.chmod(path, 0o4755)`; None for a mode without special bits."""
    value = number(mode)
    if value is None or not value & _SPECIAL_BITS:
        return None
    return ["chmod", f"{value & 0o7777:o}", path]
