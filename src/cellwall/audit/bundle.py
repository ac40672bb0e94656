"""The verifier as one file, for a machine without Cellwall: plain Python and `cryptography`.

It is not a second verifier: it concatenates the modules that `cellwall audit verify` runs, without
the lines by which they import each other.
"""

from __future__ import annotations

import ast
from importlib import resources

from cellwall import __version__

_MODULES = (
    ("cellwall.core", "notes.py"),
    ("cellwall.audit", "merkle.py"),
    ("cellwall.audit", "records.py"),
    ("cellwall.audit", "checkpoints.py"),
    ("cellwall.audit", "segments.py"),
    ("cellwall.audit", "verify.py"),
)
_HEAD = '''#!/usr/bin/env python3
"""Checks an audit log of Cellwall (version {version}). Needs Python 3.11 and `cryptography`;
packed segments also need `zstandard`, or `zstd -d` on them first.

    python3 cellwall-verify.py DIRECTORY --key NAME+ID+BASE64 [--checkpoint FILE]... [--since N]

The key is the one that the log's owner has told you; `cellwall audit key` prints it.
"""

from __future__ import annotations
'''
_TAIL = """

def _main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Check an audit log of Cellwall.")
    parser.add_argument("directory")
    parser.add_argument("--key", action="append", required=True, help="a public key; repeatable")
    parser.add_argument("--checkpoint", action="append", default=[], help="a signed note to find")
    parser.add_argument("--since", type=int, help="begin with this record's segment")
    given = parser.parse_args()
    notes = []
    for path in given.checkpoint:
        with open(path, "rb") as file:
            notes.append(file.read(MAX_NOTE_BYTES))
    keys = [PublicKey.parse(each) for each in given.key]
    report = verify(given.directory, keys, checkpoints=notes, since=given.since)
    if report.ok:
        print(f"ok: {report.records} records, {report.signed} of them signed")
        return 0
    print(f"NOT OK after {report.records} sound records: {report.reason}")
    return 1


if __name__ == "__main__":
    raise SystemExit(_main())
"""


def verifier_source() -> str:
    """The text of the file."""
    sources = [resources.files(package).joinpath(name).read_text() for package, name in _MODULES]
    seen: set[str] = set()
    for source in sources:
        names = _defined(source)
        if names & seen:
            raise AssertionError(f"two modules of the verifier define {sorted(names & seen)}")
        seen |= names
    head = _HEAD.format(version=__version__)
    return "\n\n\n".join([head, *map(_without_own_imports, sources)]) + "\n" + _TAIL


def _defined(source: str) -> set[str]:
    """The top-level names of a module: in one file they must be unique."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {
                    each.id
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


def _without_own_imports(source: str) -> str:
    """The module without its imports of ours. The imported names stand above it in the bundle."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        is_ours = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith("cellwall.")
        )
        if is_ours:
            for number in range(node.lineno - 1, (node.end_lineno or node.lineno)):
                lines[number] = ""
    return "\n".join(lines).strip()
