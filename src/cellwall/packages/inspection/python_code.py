"""What the Python code of a package does, from its syntax tree (PKG-1). Pure.

Parsing takes a second for each 2 MB, so a file is parsed only where words of a rule are in it.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from cellwall.packages.inspection.behaviours import Behaviour, ObservedBehaviour, When
from cellwall.packages.inspection.python_reach import reached_nodes
from cellwall.packages.inspection.signs import (
    hidden_in,
    is_start_file,
    signs_of_command,
    signs_of_text,
)
from cellwall.parsing.budget import checked
from cellwall.parsing.matching import Pattern
from cellwall.parsing.python.calls import (
    DECODERS,
    FETCHERS,
    HELD_MODULES,
    PROCESS,
    RUNS,
    Marks,
)
from cellwall.parsing.python.names import PythonNames, bare
from cellwall.parsing.python.syntax import parse_python
from cellwall.parsing.shell.words import UNKNOWN

MAX_SOURCE_BYTES = 1024 * 1024
"""Longer sources are generated tables; only their hidden code is searched for."""

_MAX_TOKENS = 200_000
"""Of one source: about 700 KB with their comments, and a second on a slow machine."""
_TABLES = tomllib.loads(Path(__file__).with_name("python.toml").read_text("utf-8"))
_CALLS = tuple(
    (frozenset(paths.split()), Behaviour[name]) for name, paths in _TABLES["calls"].items()
)
_NAMES = {name: frozenset(words.split()) for name, words in _TABLES["names"].items()}
_NEEDS = {name: Pattern(text) for name, text in _TABLES["needs"].items()}
_STARRED = {
    module: [
        path.rpartition(".")[2]
        for path in sorted(PROCESS | DECODERS | FETCHERS)
        if path.rpartition(".")[0] == module
    ]
    for module in ("os", "subprocess", "base64", "zlib", "marshal", "urllib.request", "requests")
}
# `start()`, `core.start()`, `x = start()` and `Thread(target=start)` at the left margin.
_MARGIN_CALL = re.compile(
    rb"^(?:try:\s*\n[ \t]+)?(?:\w+ ?= ?)?(?:[\w.]*\bThread\(target ?= ?)?([A-Za-z_][\w.]*)[(,)]",
    re.MULTILINE,
)
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import\b([^\n]{0,500})", re.MULTILINE)
_BODIES = frozenset({"data", "json", "params", "files"})
_NAME = re.compile(rb"[A-Za-z_]\w*")


# PEP 263: in the first two lines. Python decodes the file with any codec that it has.
_CODING = re.compile(
    rb"\A(?:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n?|\n))??[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)"
)
_PLAIN_CODECS = re.compile(
    r"utf-8(-sig)?|ascii|iso8859-\d+|cp125\d|cp437|cp8(?!64)\d\d|cp9[345]\d|koi8-\w|mac-\w+|gb\w+|big5\w*"
    r"|euc_\w+|shift_jis|tis-620|johab"
)


def source_codec(data: bytes) -> str:
    """Python's name of the codec that a source declares; as written, where Python has none."""
    found = _CODING.match(data)
    if found is None:
        return "utf-8-sig"
    name = found[1].decode("ascii")
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        return name
    return "utf-8-sig" if codec == "utf-8" else codec


def is_encoded(data: bytes) -> bool:
    """Whether ASCII text in a source stands for other text.

    With `unicode_escape` or UTF-7, a line that begins with # can have a line break and code in it.
    """
    codec = source_codec(data)
    try:
        return not _PLAIN_CODECS.fullmatch(codecs.lookup(codec).name)
    except (LookupError, ValueError):
        return False  # Python does not run the file


class Depth(Enum):
    """How much of a source is looked at."""

    NOTHING = 0
    REACHED = 1  # the code that runs by itself
    ALL = 2


def needed_depth(data: bytes) -> Depth:
    """An upper bound of what `observe_python` can see in a source."""

    def has(*names: str) -> bool:
        return any(_NEEDS[name].matches(data) for name in names)

    runs = has("run")
    if not runs and not data.isascii():
        runs = b"\xf0\x9d" in data or b"\xef\xbd" in data  # letters that Python reads as ASCII
    if has("always") or (runs and has("decode")):
        return Depth.ALL
    talks, starts = has("network"), has("process")
    if runs and talks:
        return Depth.ALL
    if (talks or starts) and has("about"):
        return Depth.REACHED
    is_shallow = (talks and starts) or (has("decode") and (starts or has("pickle")))
    return Depth.REACHED if is_shallow else Depth.NOTHING


def called_names(data: bytes) -> set[str]:
    """Imported functions that a module calls at its left margin."""
    called = {name.decode() for name in _MARGIN_CALL.findall(data[:MAX_SOURCE_BYTES])}
    if not called:
        return called
    lines = b" ".join(_IMPORT.findall(data[:MAX_SOURCE_BYTES]))
    imported = {name.decode() for name in _NAME.findall(lines)}
    return {name.rpartition(".")[2] for name in called if name.partition(".")[0] in imported}


def observe_python(
    data: bytes, depth: Depth, *, is_install: bool = False, called: Iterable[str] = ()
) -> list[ObservedBehaviour]:
    """The behaviours of a source.

    A source that cannot be parsed is reported as such: another Python may run it, or a program that
    reads it as a text.
    """
    moment = When.INSTALL if is_install else When.IMPORT
    found = [ObservedBehaviour(behaviour, line, moment) for behaviour, line in hidden_in(data)]
    if is_encoded(data):
        found.append(ObservedBehaviour(Behaviour.HIDE_BY_ENCODING, 1, moment))
    if len(data) > MAX_SOURCE_BYTES or depth is Depth.NOTHING:
        return found
    try:
        text = data.decode(source_codec(data), "replace").replace("\0", " ")
        tree = parse_python(text, max_tokens=_MAX_TOKENS)
        reached, imports = reached_nodes(tree, is_install=is_install, called=called)
        nodes = list(checked(ast.walk(tree))) if depth is Depth.ALL else [*reached, *imports]
        if depth is Depth.ALL or _has_actions(nodes):
            found += _Observer(nodes, moment, reached).run()
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, LookupError) as e:
        line = getattr(e, "lineno", None)
        found.append(ObservedBehaviour(Behaviour.UNREADABLE, line or 1, moment))
    return list(dict.fromkeys(found))


# Methods and functions without which code neither starts a program nor uses the network.
_ACTIONS = frozenset(
    path.rpartition(".")[2]
    for path in (*PROCESS, *RUNS, *(path for paths, _ in _CALLS for path in paths))
) | {
    "post",
    "put",
    "patch",
    "getattr",
    "__import__",
    "import_module",
    "open",
    "write_text",
    "loads",
}


def _has_actions(nodes: Iterable[ast.AST]) -> bool:
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _ACTIONS:
                return True
            case ast.alias(name=name, asname=str()) if name.rpartition(".")[2] in _ACTIONS:
                return True
            case ast.Call(func=ast.Subscript() | ast.Call()):
                return True
    return False


class _Observer:
    def __init__(self, nodes: list[ast.AST], moment: When, reached: Mapping[ast.AST, None]) -> None:
        self._nodes = nodes
        self._moment = moment
        self._reached = reached
        self._found: list[ObservedBehaviour] = []
        self._names = PythonNames(
            self._nodes, held_modules=HELD_MODULES, starred=_STARRED, is_decoding=True
        )
        self._marks = Marks(self._nodes, self._names)
        self._connected: list[tuple[ast.AST, Behaviour]] = []

    def run(self) -> list[ObservedBehaviour]:
        docstrings = {id(each.value) for each in self._nodes if isinstance(each, ast.Expr)}
        read_whole = self._environment_uses()
        for node in checked(self._nodes):
            match node:
                case ast.Call():
                    self._observe_call(node)
                case ast.Constant(value=str(text)) if id(node) not in docstrings and len(text) > 3:
                    self._observe_text(node, text)
                case ast.Constant(value=bytes(raw)) if len(raw) > 3:
                    self._observe_text(node, raw[:4096].decode("latin-1"))
                case ast.BinOp(op=ast.Add() | ast.Div()) | ast.JoinedStr():
                    self._observe_text(node, self._names.text(node) or "")
                case ast.Attribute(attr="environ" | "environb") if id(node) in read_whole:
                    self._add(Behaviour.READ_ENVIRONMENT, node)
                case ast.Subscript(slice=item) if not isinstance(item, ast.Constant):
                    self._observe_name(item)
        self._observe_shell()
        return self._found

    def _add(self, behaviour: Behaviour, node: ast.AST) -> None:
        when = self._moment if node in self._reached else When.CALLED
        self._found.append(ObservedBehaviour(behaviour, getattr(node, "lineno", 1), when))

    def _environment_uses(self) -> set[int]:
        """`os.environ` as a whole, not one variable of it."""
        uses = {
            id(each)
            for each in self._nodes
            if isinstance(each, ast.Attribute) and each.attr in {"environ", "environb"}
        }
        for node in self._nodes:
            match node:
                case ast.Subscript(value=ast.Attribute() as owner):
                    uses.discard(id(owner))
                case ast.Attribute(value=ast.Attribute() as owner, attr=name):
                    if name in _NAMES["single_variable"]:
                        uses.discard(id(owner))
                case ast.Compare(comparators=comparators):
                    uses.difference_update(map(id, comparators))
                case ast.keyword(arg="env", value=value):
                    uses.difference_update(id(each) for each in ast.walk(value))
        return uses

    def _observe_text(self, node: ast.AST, text: str) -> None:
        for behaviour in signs_of_text(text):
            self._add(behaviour, node)

    def _observe_name(self, node: ast.expr) -> None:
        is_built = not isinstance(node, ast.Constant | ast.Name)
        if is_built and self._names.known_text(node) in _NAMES["hidden"]:
            self._add(Behaviour.BUILT_NAME, node)

    def _observe_call(self, node: ast.Call) -> None:
        paths = {bare(path) for path in self._names.paths(node.func)}
        if not PROCESS.isdisjoint(paths):
            self._observe_command(node)
        if not RUNS.isdisjoint(paths):
            self._observe_run(node)
        if not _NAMES["unpickling"].isdisjoint(paths) and self._marks.has("decoded", node.args):
            self._add(Behaviour.LOAD_DECODED, node)
        if not DECODERS.isdisjoint(paths):
            self._observe_decoded(node)
        for table, behaviour in _CALLS:
            if not table.isdisjoint(paths):
                self._add(behaviour, node)
        if not _NAMES["looking_up"].isdisjoint(paths):
            text = self._names.text(node.args[0]) if node.args else None
            if text is not None and UNKNOWN in text and re.search(r"\.[a-z]{2,}$", text):
                self._add(Behaviour.LOOK_UP, node)
        if not _NAMES["importing"].isdisjoint(paths):
            for each in node.args:
                self._observe_name(each)
        if "os.dup2" in paths:
            self._connected.append((node, Behaviour.CONNECT_SHELL))
        self._observe_request(node, paths)
        self._observe_write(node, {path.rpartition(".")[2] for path in paths})

    def _observe_command(self, node: ast.Call) -> None:
        self._add(Behaviour.RUN_PROGRAM, node)
        command = self._command(node)
        for behaviour in signs_of_command(command):
            self._add(behaviour, node)
        if re.search(r"\b(?:curl|wget|Invoke-WebRequest)\b", command[:4096]):
            self._add(Behaviour.SEND if UNKNOWN in command else Behaviour.FETCH, node)

    def _command(self, node: ast.Call) -> str:
        texts = []
        for each in node.args:
            words = self._names.list_of(each)
            texts += [self._names.text(each)] if words is None else words
        return " ".join(each or UNKNOWN for each in texts)

    def _observe_run(self, node: ast.Call) -> None:
        if self._marks.has("decoded", node.args):
            self._add(Behaviour.RUN_DECODED, node)
        if self._marks.has("fetched", node.args):
            self._add(Behaviour.RUN_FETCHED, node)

    def _observe_decoded(self, node: ast.Call) -> None:
        """A text that is written in Base64 or as hexadecimal digits."""
        text = self._names.known_text(node.args[0]) if node.args else None
        if text is None or not 8 <= len(text) <= 4096:
            return
        for decode in (base64.b64decode, binascii.unhexlify):
            try:
                inner = decode(text.encode()).decode("ascii")
            except (ValueError, binascii.Error):
                continue
            self._observe_text(node, inner)
            for behaviour in signs_of_command(inner):
                self._add(behaviour, node)

    def _observe_request(self, node: ast.Call, paths: set[str]) -> None:
        """A request that carries data: a body, parameters, or a computed part of the URL."""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_request = not FETCHERS.isdisjoint(paths) or "urllib.request.Request" in paths
        url = self._names.text(node.args[0]) if node.args else None
        is_url = url is not None and url.startswith(("http://", "https://"))
        if method in {"post", "put", "patch"} and is_url:
            self._add(Behaviour.SEND, node)
        elif is_request or (method == "get" and is_url):
            has_body = any(
                each.arg in {"data", "json", "params", "files"} for each in node.keywords
            )
            is_computed = is_url and url is not None and UNKNOWN in url[8:]
            if has_body or is_computed or (is_request and len(node.args) > 1):
                self._add(Behaviour.SEND, node)

    def _observe_write(self, node: ast.Call, names: set[str]) -> None:
        if names.isdisjoint(_NAMES["writers"]):
            return
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        texts = [self._names.text(each) for each in (*node.args[:2], owner) if each is not None]
        mode = next((each for each in texts if each and re.fullmatch(r"[rwaxbt+]{1,3}", each)), "r")
        mode = next(
            (self._names.text(each.value) or "" for each in node.keywords if each.arg == "mode"),
            mode,
        )
        is_writing = "open" not in names or not {"w", "a", "x", "+"}.isdisjoint(mode)
        if is_writing and any(is_start_file(each) for each in texts if each):
            self._add(Behaviour.WRITE_START_FILE, node)

    def _observe_shell(self) -> None:
        """A socket that becomes the standard streams of a shell."""
        seen = {each.behaviour for each in self._found}
        has_network = not seen.isdisjoint({Behaviour.FETCH, Behaviour.SEND})
        if has_network and Behaviour.RUN_PROGRAM in seen:
            for node, behaviour in self._connected:
                self._add(behaviour, node)
