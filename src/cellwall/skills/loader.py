"""The only access to a skill's content: read once, compare with the signed manifest, return
(SKL-1).

(1) read the manifest                 (4) every existing file is listed, with its size and mode
(2) a trusted key has signed it       (5) its bytes are the signed ones
(3) it is the requested skill         (6) every listed file exists

The returned bytes are the compared ones; nothing is read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType

from cellwall.core.errors import SkillRefused
from cellwall.core.notes import MAX_NOTE_BYTES, PublicKey, Signer
from cellwall.core.skills import Skill
from cellwall.skills.folders import file_refused, is_executable, read_named, read_once, walk_files
from cellwall.skills.manifest import (
    MANIFEST_NAME,
    MAX_BYTES,
    MAX_FILES,
    Manifest,
    build_manifest,
    open_manifest,
    sign_manifest,
    too_large,
    too_many,
)


@dataclass(frozen=True, slots=True)
class VerifiedSkill:
    """A verified skill and the signed manifest it was compared with."""

    skill: Skill
    note: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SkillDraft:
    """The files of a directory, not signed yet, so not a `Skill`."""

    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    executables: frozenset[str] = field(repr=False)


def verify(folder: int, keys: Sequence[PublicKey], *, name: str | None = None) -> VerifiedSkill:
    """The skill in an open directory. Raises for the first deviation from the signed state."""
    # (1) Bounded, and read once like every file.
    note = read_named(folder, MANIFEST_NAME, max_bytes=MAX_NOTE_BYTES)
    if note is None:
        raise SkillRefused(
            "the skill is not signed: it has no manifest",
            hint="Look at what it holds, then sign it with `cellwall skills sign`.",
            code="CW-SKILL-UNSIGNED",
        )
    # (2) Before any of it is parsed.
    manifest, signers = open_manifest(note, keys)
    # (3) A skill stored under another name is signed as well, but is not the requested one.
    if name is not None and manifest.name != name:
        raise SkillRefused(
            f"the skill stored as {name} was signed as {manifest.name}",
            hint=f"Remove {name}, then add it again from its source.",
            code="CW-SKILL-CHANGED",
        )
    return VerifiedSkill(_skill(manifest, _read_verified(folder, manifest), signers), note)


def sign_draft(draft: SkillDraft, key: Signer, keys: Sequence[PublicKey]) -> VerifiedSkill:
    """Sign a draft with this key; refused if the key is not trusted."""
    note = sign_manifest(draft.manifest, key)
    manifest, signers = open_manifest(note, keys)
    return VerifiedSkill(_skill(manifest, draft.files, signers), note)


def _skill(manifest: Manifest, files: Mapping[str, bytes], signers: Sequence[PublicKey]) -> Skill:
    return Skill(
        name=manifest.name,
        files=MappingProxyType(dict(files)),
        executables=frozenset(file.path for file in manifest.files if file.executable),
        digest=manifest.digest,
        signers=tuple(f"{key.name}+{key.id.hex()}" for key in signers),
    )


def _read_verified(folder: int, manifest: Manifest) -> dict[str, bytes]:
    listed = {file.path: file for file in manifest.files}
    files: dict[str, bytes] = {}
    for path, node, status in walk_files(folder):
        # (4) An unlisted file is not even read.
        file = listed.get(path)
        if file is None:
            raise _changed(path, "is not in the manifest")
        if is_executable(status) != file.executable:
            raise _changed(path, "is executable" if not file.executable else "is not executable")
        if status.st_size != file.size_bytes:
            raise _changed(path, "differs in size from the signed file")
        content = read_once(path, node, status, max_bytes=file.size_bytes)
        # (5)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise _changed(path, "differs in content from the signed file")
        files[path] = content
    # (6)
    for path in listed:
        if path not in files:
            raise _changed(path, "is missing")
    return files


def collect(folder: int, name: str) -> SkillDraft:
    """All files in an open directory, to be signed or proposed; an old manifest is ignored."""
    with closing(walk_files(folder)) as opened_files:
        return build_draft(
            name,
            (
                (path, read_once(path, node, status, max_bytes=MAX_BYTES), is_executable(status))
                for path, node, status in opened_files
            ),
        )


def build_draft(name: str, contents: Iterable[tuple[str, bytes, bool]]) -> SkillDraft:
    """The draft of these paths, contents and whether each is executable, within the limits."""
    files: dict[str, bytes] = {}
    executables: set[str] = set()
    left = MAX_BYTES
    for path, content, runs in contents:
        if len(files) >= MAX_FILES:
            raise too_many()
        left -= len(content)
        if left < 0:
            raise too_large()
        files[path] = content
        if runs:
            executables.add(path)
    return SkillDraft(
        build_manifest(name, files, executables), MappingProxyType(files), frozenset(executables)
    )


def _changed(path: str, why: str) -> SkillRefused:
    return file_refused(
        path,
        why,
        code="CW-SKILL-CHANGED",
        hint="Look at what was changed; if you want it, sign the skill again.",
    )
