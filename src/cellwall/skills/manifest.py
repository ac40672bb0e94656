"""The manifest of a skill: its files as one text that is signed (SKL-1). Pure.

    cellwall-skill/v1
    name pdf-forms
    - 1204 0f3a… SKILL.md
    x 88 9b1c… scripts/fill.py

One line per file, sorted by path: executable or not, size in bytes, SHA-256, path. The encoding is
canonical: a text that differs from its re-encoding is refused.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cellwall.core.errors import BadInput, SkillRefused
from cellwall.core.limits import MIB
from cellwall.core.notes import BadNote, PublicKey, Signer, open_note, signed_note
from cellwall.core.text import INVISIBLE

MANIFEST_NAME = ".cellwall-skill"
MAX_FILES = 1000
MAX_BYTES = 8 * MIB
"""For one skill, and for all skills of one action together: they are held in memory."""
MAX_DEPTH = 8
_MAX_PATH_BYTES = 512
_MAX_NAME_BYTES = 255
_FORMAT = "cellwall-skill/v1"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_LINE = re.compile(r"([x-]) (0|[1-9][0-9]{0,8}) ([0-9a-f]{64}) (.+)")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file as it must be."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool

    @classmethod
    def of(cls, path: str, content: bytes, *, executable: bool) -> ManifestFile:
        return cls(path, len(content), hashlib.sha256(content).hexdigest(), executable)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A skill's name and all its files; construction enforces the limits."""

    name: str
    files: tuple[ManifestFile, ...]

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_files(self.files)

    def encode(self) -> str:
        lines = [_FORMAT, f"name {self.name}"]
        lines += [
            f"{'x' if file.executable else '-'} {file.size_bytes} {file.sha256} {file.path}"
            for file in self.files
        ]
        return "\n".join(lines) + "\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode().encode()).hexdigest()


def build_manifest(name: str, files: Mapping[str, bytes], executables: Iterable[str]) -> Manifest:
    """The manifest of these contents."""
    runs = frozenset(executables)
    entries = [
        ManifestFile.of(path, content, executable=path in runs) for path, content in files.items()
    ]
    return Manifest(name, tuple(sorted(entries, key=_sort_key)))


def parse(text: str) -> Manifest:
    """The manifest in a text; raises for anything else."""
    head, _, rest = text.partition("\n")
    name, _, rest = rest.partition("\n")
    if head != _FORMAT:
        raise _malformed("its format is unknown to this version")
    if not name.startswith("name "):
        raise _malformed("it names no skill")
    rows = rest.split("\n")[:-1]
    if len(rows) > MAX_FILES:
        raise too_many()
    manifest = Manifest(name.removeprefix("name "), tuple(map(_parse_file, rows)))
    if manifest.encode() != text:
        raise _malformed("it is not in canonical form")
    return manifest


def _parse_file(line: str) -> ManifestFile:
    match = _LINE.fullmatch(line)
    if match is None:
        raise _malformed("a line does not describe a file")
    mark, size, sha256, path = match.groups()
    return ManifestFile(path, int(size), sha256, mark == "x")


def sign_manifest(manifest: Manifest, key: Signer) -> bytes:
    """The signed manifest."""
    return signed_note(manifest.encode(), key)


def open_manifest(note: bytes, keys: Sequence[PublicKey]) -> tuple[Manifest, tuple[PublicKey, ...]]:
    """The manifest and the keys that signed it; the signature is checked before parsing."""
    try:
        text, signers = open_note(note, keys)
    except BadNote as error:
        raise SkillRefused(
            f"the skill is not signed by a key that is trusted here: {error}",
            hint="Look at what it holds, then sign it with `cellwall skills sign`, or list its "
            "signer's key in [skills] trusted_keys.",
            code="CW-SKILL-UNSIGNED",
        ) from None
    return parse(text), signers


def check_name(name: str) -> str:
    """Returns the name if it has the one allowed form: it becomes a directory name."""
    if _NAME.fullmatch(name) is None:
        raise BadInput(
            f"{name[:80]!r} is not a skill's name",
            hint="Use small letters, digits, dots and hyphens, at most 64, no dot first.",
            code="CW-SKILL-NAME",
        )
    return name


def check_path(path: str) -> str:
    """Returns the path if every reader interprets it in the same way.

    Names that look alike, contain invisible characters, or escape the directory would let a person
    approve other files than those that are used later.
    """
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise _bad_path(path, f"lies more than {MAX_DEPTH} folders deep")
    if any(part in {"", ".", ".."} for part in parts):
        raise _bad_path(path, "is not a plain relative path")
    if not path.isprintable() or "\\" in path or INVISIBLE.search(path):
        raise _bad_path(path, "contains invisible or ambiguous characters")
    if unicodedata.normalize("NFC", path) != path:
        raise _bad_path(path, "is not in Unicode's normal form NFC")
    if any(part != part.strip() for part in parts):
        raise _bad_path(path, "has a name that begins or ends with a space")
    # Printable text has no lone surrogates, so it can be encoded.
    too_long = any(len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    if too_long or len(path.encode()) > _MAX_PATH_BYTES:
        raise _bad_path(path, "is too long")
    if any(_fold(part).startswith(MANIFEST_NAME) for part in parts):
        raise _bad_path(path, "has the name of a manifest, or of one half written")
    return path


def _check_files(files: tuple[ManifestFile, ...]) -> None:
    if not files:
        raise SkillRefused("the skill holds no file", code="CW-SKILL-EMPTY")
    if len(files) > MAX_FILES:
        raise too_many()
    if sum(file.size_bytes for file in files) > MAX_BYTES:
        raise too_large()
    paths = [check_path(file.path) for file in files]
    if any(_sort_key(a) >= _sort_key(b) for a, b in pairwise(files)):
        raise _malformed("its files are not sorted, or one is listed twice")
    _check_alike(paths)


def _check_alike(paths: Sequence[str]) -> None:
    """No two names that some file system or reader treats as equal; no path that is both file
    and directory."""
    spelled: dict[str, tuple[str, bool]] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            place, is_file = "/".join(parts[:depth]), depth == len(parts)
            if spelled.setdefault(_fold(place), (place, is_file)) != (place, is_file):
                raise _bad_path(path, "has a name that can be confused with another")


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _sort_key(file: ManifestFile) -> bytes:
    return file.path.encode("utf-8", "surrogatepass")


def too_many() -> SkillRefused:
    """More files than a skill may have."""
    hint = "Leave out files that the skill does not need, such as .git."
    return _oversized(f"holds more than {MAX_FILES} files", hint)


def too_large() -> SkillRefused:
    """More bytes than a skill may have."""
    hint = "Leave out files that the skill does not need; pass data in a workspace."
    return _oversized(f"is larger than {MAX_BYTES // MIB} MiB", hint)


def _oversized(problem: str, hint: str) -> SkillRefused:
    return SkillRefused(f"the skill {problem}", hint=hint, code="CW-SKILL-TOO-LARGE")


def _malformed(why: str) -> SkillRefused:
    return SkillRefused(
        f"the skill's manifest cannot be used: {why}",
        hint="Sign the skill again.",
        code="CW-SKILL-MANIFEST",
    )


def _bad_path(path: str, why: str) -> SkillRefused:
    return SkillRefused(
        f"{path[:200]!r} {why}", hint="Rename it, then sign again.", code="CW-SKILL-PATH"
    )
