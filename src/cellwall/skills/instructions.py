"""Instruction files of a project, signed as a set and compared with the signed state (SKL-1).

CLAUDE.md, AGENTS.md, rules and commands of agents lie among other files, at any depth.
`core/protected_names.toml` lists their names. The signed list lies at the top of the project; it is
a manifest like that of a skill, so changed, added and missing files are all reported by name. A
link is signed as its target path. Files that they import by name (`@docs/style.md`) are signed too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from cellwall.core.errors import SkillRefused
from cellwall.core.instruction_imports import MAX_BYTES as SEARCHED_BYTES
from cellwall.core.instruction_imports import all_imports
from cellwall.core.notes import MAX_NOTE_BYTES, PublicKey
from cellwall.core.protected_names import load
from cellwall.skills.folders import (
    closing_fd,
    file_refused,
    is_executable,
    open_directory,
    read_named,
    read_once,
)
from cellwall.skills.loader import SkillDraft, build_draft
from cellwall.skills.manifest import (
    MAX_BYTES,
    ManifestFile,
    open_manifest,
    too_many,
)

INSTRUCTIONS_NAME = ".cellwall-instructions"
_MAX_ENTRIES = 1_000_000
_TEXTS = (".md", ".mdc", ".txt")
"""In the settings directories of agents only texts are instructions; other files change by
themselves."""
_LINK = b"symbolic link to "


@dataclass(frozen=True, slots=True)
class Comparison:
    """The current files compared with the signed ones; paths in order."""

    name: str
    digest: str
    signers: tuple[str, ...]
    files: int
    changed: tuple[str, ...]
    added: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.added or self.missing)


def note_name(only: str | None) -> str:
    """The file name of the signed list of a project, or of one file alone."""
    return INSTRUCTIONS_NAME if only is None else f"{INSTRUCTIONS_NAME}-{only}"


def collect_instructions(folder: int, name: str, *, only: str | None = None) -> SkillDraft:
    """Read the instruction files below an open directory once; or one file of it, whatever its
    name.

    Raises if there is none, or more than one manifest can hold.
    """
    instructions = _find_instructions(folder, only)
    first = next(instructions, None)
    if first is None:
        raise SkillRefused(
            "there is no instruction file to sign",
            hint="Name a project with a CLAUDE.md, an AGENTS.md or rules of an agent in it.",
            code="CW-SKILL-EMPTY",
        )
    return build_draft(name, chain((first,), instructions))


def compare(folder: int, keys: Sequence[PublicKey], *, only: str | None = None) -> Comparison:
    """Every difference from what a trusted key signed; raises if nothing was signed."""
    note = read_named(folder, note_name(only), max_bytes=MAX_NOTE_BYTES)
    if note is None:
        raise SkillRefused(
            "the instruction files are not signed",
            hint="Read them, then sign them with `cellwall skills sign --instructions DIR`.",
            code="CW-SKILL-UNSIGNED",
        )
    manifest, signers = open_manifest(note, keys)
    signed = {file.path: file for file in manifest.files}
    now = {
        path: ManifestFile.of(path, content, executable=runs)
        for path, content, runs in _find_instructions(folder, only)
    }
    return Comparison(
        name=manifest.name,
        digest=manifest.digest,
        signers=tuple(f"{key.name}+{key.id.hex()}" for key in signers),
        files=len(signed),
        changed=tuple(sorted(p for p in now if p in signed and now[p] != signed[p])),
        added=tuple(sorted(p for p in now if p not in signed)),
        missing=tuple(sorted(p for p in signed if p not in now)),
    )


def is_instruction(path: str) -> bool:
    """True if agents follow a file of this path."""
    groups = load().groups_of(path)
    return "instruction" in groups or ("agent" in groups and path.lower().endswith(_TEXTS))


def _find_instructions(folder: int, only: str | None) -> Iterator[tuple[str, bytes, bool]]:
    if only is not None:
        instruction = _read(folder, only, only)
        if instruction is not None:
            yield instruction
        return
    read: dict[str, bytes] = {}
    for instruction in _walk_instructions(folder):
        read[instruction[0]] = instruction[1]
        yield instruction
    for path in all_imports(tuple(read), partial(_text_of, folder, read)):
        if (imported := _read_below(folder, path)) is not None:
            yield imported


def _text_of(folder: int, read: Mapping[str, bytes], path: str) -> bytes | None:
    if path in read:
        return read[path][:SEARCHED_BYTES]
    imported = _read_below(folder, path)
    return None if imported is None else imported[1][:SEARCHED_BYTES]


def _read_below(folder: int, path: str) -> tuple[str, bytes, bool] | None:
    """A file below the project, by a way without links; None where there is none."""
    *above, name = path.split("/")
    here = os.dup(folder)
    try:
        for each in above:
            inner = open_directory(each, at=here)
            os.close(here)
            here = inner
        return _read(here, name, path)
    except (OSError, SkillRefused):  # a folder, a link on the way: agents get no text of it
        return None
    finally:
        os.close(here)


def _walk_instructions(folder: int) -> Iterator[tuple[str, bytes, bool]]:
    left = _MAX_ENTRIES
    pending = [""]
    while pending:
        way = pending.pop()
        try:
            here = open_directory(way or ".", at=folder)
        except FileNotFoundError:
            continue
        except OSError:
            raise file_refused(way, "cannot be listed", code="CW-SKILL-UNREADABLE") from None
        with closing_fd(here), os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                left -= 1
                if left < 0:
                    raise too_many()
                path = f"{way}/{entry.name}" if way else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != ".git":
                        pending.append(path)
                elif is_instruction(path):
                    instruction = _read(here, entry.name, path)
                    if instruction is not None:
                        yield instruction


def _read(folder: int, name: str, path: str) -> tuple[str, bytes, bool] | None:
    try:
        node = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with closing_fd(node):
        status = os.fstat(node)
        if stat.S_ISLNK(status.st_mode):
            return path, _LINK + os.fsencode(os.readlink("", dir_fd=node)), False
        if not stat.S_ISREG(status.st_mode):
            raise file_refused(path, "is neither a file nor a link")
        return path, read_once(path, node, status, max_bytes=MAX_BYTES), is_executable(status)
