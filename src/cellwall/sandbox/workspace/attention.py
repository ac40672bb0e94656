"""Which changes of a copy-on-write run a person should see first, and why (FS-8, SKL-1). Pure.

What agents obey and what tools run comes before ordinary files: at the end of a long list nobody
reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from cellwall.core.protected_names import build_files, load
from cellwall.sandbox.workspace.changes import Change

INSTRUCTIONS = "instructions for agents"
_PROTECTED = "protected name"
_BUILD = "runs code when built or tested"


def ranked(found: Iterable[Change], obeyed: Collection[str] = ()) -> tuple[Change, ...]:
    """The same changes with their marks: marked ones first, else in the same order.

    `obeyed` are places that a link with the name of instructions leads to.
    """
    marked = [
        replace(change, mark=INSTRUCTIONS if change.path in obeyed else mark_of(change.path))
        for change in found
    ]
    order = [INSTRUCTIONS, _PROTECTED, _BUILD, ""]
    return tuple(sorted(marked, key=lambda change: order.index(change.mark)))


def mark_of(path: str) -> str:
    """Why a change of that path should be looked at; empty for an ordinary file."""
    groups = load().groups_of(path)
    if is_instruction(path):
        return INSTRUCTIONS
    if groups:
        return _PROTECTED
    return _BUILD if build_files().groups_of(path) else ""


def is_instruction(path: str) -> bool:
    """Text that agents obey, and nothing else that is protected."""
    return load().groups_of(path) == {"instruction"}
