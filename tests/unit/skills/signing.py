"""Signs and loads a folder as the parts do it."""

from __future__ import annotations

from pathlib import Path

from cellwall.core.keys import SigningKey
from cellwall.skills.folders import closing_fd, open_directory
from cellwall.skills.loader import VerifiedSkill, collect, sign_draft, verify
from cellwall.skills.manifest import MANIFEST_NAME


def sign(place: Path, key: SigningKey, name: str = "greeting") -> None:
    with closing_fd(open_directory(str(place))) as descriptor:
        note = sign_draft(collect(descriptor, name), key, (key.public,)).note
    (place / MANIFEST_NAME).unlink(missing_ok=True)
    (place / MANIFEST_NAME).write_bytes(note)


def load(place: Path, key: SigningKey, **options: str) -> VerifiedSkill:
    with closing_fd(open_directory(str(place))) as descriptor:
        return verify(descriptor, (key.public,), **options)
