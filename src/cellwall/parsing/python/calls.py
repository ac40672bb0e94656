"""Functions of Python that run, start, decode or fetch, and where data turns into code. Pure."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from cellwall.parsing.budget import checked
from cellwall.parsing.python.names import PythonNames

_PROCESS = (
    "os.system os.popen os.fork os.forkpty os.posix_spawn os.posix_spawnp os.execl os.execle "
    "os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.spawnl os.spawnle os.spawnlp "
    "os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.startfile pty.spawn pty.fork "
    "subprocess.run subprocess.call subprocess.Popen subprocess.check_call subprocess.check_output "
    "subprocess.getoutput subprocess.getstatusoutput commands.getoutput commands.getstatusoutput "
    "asyncio.create_subprocess_exec asyncio.create_subprocess_shell "
    "asyncio.subprocess.create_subprocess_exec asyncio.subprocess.create_subprocess_shell "
    "_posixsubprocess.fork_exec posix.system posix.fork posix.execv posix.execve nt.system "
    "anyio.run_process anyio.open_process"
)
_DECODERS = (
    "base64.b64decode base64.b32decode base64.b16decode base64.b85decode base64.a85decode "
    "base64.standard_b64decode base64.urlsafe_b64decode base64.decodebytes base64.decodestring "
    "binascii.unhexlify binascii.a2b_base64 binascii.a2b_hex binascii.a2b_uu zlib.decompress "
    "bz2.decompress lzma.decompress gzip.decompress bytes.fromhex bytearray.fromhex codecs.decode "
    "marshal.loads"
)
_FETCHERS = (
    "urllib.request.urlopen urllib.urlopen urllib2.urlopen requests.get requests.post httpx.get "
    "httpx.post requests.request"
)

PROCESS = frozenset(_PROCESS.split())
"""Functions that start a program."""
RUNS = frozenset({"eval", "exec", "execfile", "compile", "types.CodeType", "types.FunctionType"})
DECODERS = frozenset(_DECODERS.split())
FETCHERS = frozenset(_FETCHERS.split())
HELD_MODULES = frozenset(
    {"os", "posix", "subprocess", "builtins", "sys", "pickle", "marshal", "importlib"}
)
"""Modules that many others hold: `shutil.os.system` is `os.system`."""

Mark = Literal["decoded", "fetched", "executable", "chr"]
_ROUNDS = 2
"""How often what a name holds is handed on to names that are given it."""
_MIN_NUMBERS = 4


class Marks:
    """Places of one piece of code where something is decoded, downloaded or made executable.

    Kept sorted, so that "is it inside this call?" costs a search and no walk: calls inside calls
    inside calls would otherwise be walked again for each of them.
    """

    def __init__(self, nodes: Sequence[ast.AST], names: PythonNames) -> None:
        self._places: dict[Mark, list[tuple[int, int]]] = {
            "decoded": [], "fetched": [], "executable": [], "chr": []
        }  # fmt: skip
        self._find(nodes, names)
        if self._places["decoded"] or self._places["fetched"]:
            assigned = list(_assigned_names(nodes))
            read = [node for node in checked(nodes) if isinstance(node, ast.Name)]
            for _ in range(_ROUNDS):
                self._hand_on(assigned, read)

    def has(self, mark: Mark, within: Iterable[ast.expr]) -> bool:
        """Whether it stands inside one of the expressions."""
        places = self._places[mark]
        for node in within:
            at = bisect_left(places, (node.lineno, node.col_offset))
            end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            if at < len(places) and places[at] < end:
                return True
        return False

    def _find(self, nodes: Sequence[ast.AST], names: PythonNames) -> None:
        for node in checked(nodes):
            match node:
                case ast.Name(id="chr"):
                    self._put("chr", node)
                case ast.Attribute(attr="PROT_EXEC"):
                    self._put("executable", node)
                case ast.Name():
                    known = names.base_paths(node)
                    if any(path.endswith("PROT_EXEC") for path in known):
                        self._put("executable", node)
                case ast.Call(func=func):
                    paths = names.paths(func)
                    if not DECODERS.isdisjoint(paths):
                        self._put("decoded", node)
                    if not FETCHERS.isdisjoint(paths):
                        self._put("fetched", node)
        self._sort()
        for node in checked(nodes):
            if isinstance(node, ast.Call) and self.joins_characters(node):
                self._put("decoded", node)
        self._sort()

    def joins_characters(self, node: ast.Call) -> bool:
        """`"".join(chr(x) for …)`, `"".join(map(chr, …))`, `bytes([1, 2, …])`."""
        match node:
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]):
                return self.has("chr", [argument])
            case ast.Call(func=ast.Name(id="bytes" | "bytearray"), args=[ast.List(elts=each)]):
                return len(each) >= _MIN_NUMBERS
            case _:
                return False

    def _hand_on(self, assigned: list[tuple[str, ast.expr]], read: list[ast.Name]) -> None:
        for mark in ("decoded", "fetched"):
            holding = {name for name, value in checked(assigned) if self.has(mark, [value])}
            for node in checked(read):
                if node.id in holding:
                    self._put(mark, node)
        self._sort()

    def _put(self, mark: Mark, node: ast.expr) -> None:
        self._places[mark].append((node.lineno, node.col_offset))

    def _sort(self) -> None:
        for places in self._places.values():
            places.sort()


def _assigned_names(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Names that get the value of an expression, each with the expression."""
    for node in checked(nodes):
        match node:
            case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
