"""The list of policy files of projects that a person has trusted, by path and content: reading it.

Light, since every judgement asks for it; admin/policy_trust.py changes the list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cellwall.audit.files import open_folder, open_private
from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path
from cellwall.core.types import Json

FOLDER, NAME = "policy", "trusted.json"
_MAX_BYTES = 1 << 20
_MAX_ENTRIES = 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")

Trusted = frozenset[tuple[str, str]]
"""Real paths, each with the SHA-256 of what was trusted in it."""
Stamp = tuple[str, int, int, int]
"""The state folder; and the list's time, size and number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One trusted file."""

    path: str
    sha256: str
    when: str

    def to_json(self) -> dict[str, Json]:
        return {"path": self.path, "sha256": self.sha256, "when": self.when}


def stamp(environ: Mapping[str, str]) -> Stamp:
    """Differs after every change of the list."""
    home = os.path.realpath(state_path(environ))
    try:
        found = os.stat(os.path.join(home, FOLDER, NAME))
    except OSError:
        return (home, 0, 0, 0)
    return (home, found.st_mtime_ns, found.st_size, found.st_ino)


def read_trusted(found: Stamp) -> Trusted:
    """What is trusted. A list that cannot be read, or that others could write, trusts nothing."""
    try:
        entries = read_entries(found[0])
    except (CellwallError, OSError):
        return frozenset()
    return frozenset((each.path, each.sha256) for each in entries)


def encoded(entries: Iterable[Entry]) -> bytes:
    """The list as it is written; what could not be read again is not written."""
    told = [each.to_json() for each in entries]
    data = json.dumps({"version": 1, "trusted": told}, indent=1).encode("ascii") + b"\n"
    if len(told) > _MAX_ENTRIES or len(data) > _MAX_BYTES:
        raise CellwallError(
            "too many policy files are trusted already",
            hint="Take some back with `cellwall policy untrust`.",
            code="CW-POLICY-TRUST",
        )
    return data


def read_entries(home: str) -> list[Entry]:
    """Raises for a list that is not as we wrote it, or not ours alone."""
    try:
        os.close(open_folder(home))
        folder = open_folder(os.path.join(home, FOLDER))
    except FileNotFoundError:
        return []
    try:
        file = open_private(NAME, os.O_RDONLY, folder)
    except FileNotFoundError:
        return []
    finally:
        os.close(folder)
    try:
        raw = os.pread(file, _MAX_BYTES + 1, 0)
    finally:
        os.close(file)
    return _decoded(raw)


def _decoded(raw: bytes) -> list[Entry]:
    try:
        found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.keys() != {"version", "trusted"}:
        raise broken()
    listed = found["trusted"]
    if found["version"] != 1 or not isinstance(listed, list) or len(listed) > _MAX_ENTRIES:
        raise broken()
    return [_entry(each) for each in listed]


def _entry(found: object) -> Entry:
    if not isinstance(found, dict) or found.keys() != {"path", "sha256", "when"}:
        raise broken()
    path, digest, when = (found[key] for key in ("path", "sha256", "when"))
    if not (isinstance(path, str) and isinstance(digest, str) and isinstance(when, str)):
        raise broken()
    if not os.path.isabs(path) or _DIGEST.fullmatch(digest) is None:
        raise broken()
    return Entry(path, digest, when)


def broken(detail: str = "") -> CellwallError:
    """What a person is told."""
    return CellwallError(
        "the list of trusted policy files is broken or open to other users: nothing is trusted",
        hint=f"Remove {FOLDER}/{NAME} in the state folder, then trust the files anew.",
        code="CW-POLICY-TRUST",
        detail=detail,
    )
