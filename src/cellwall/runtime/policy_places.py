"""Where policy files lie, and which project files a person has trusted, by path and content.

Light: most runs of a person are judged without a policy. admin/policy_trust.py changes the list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cellwall.audit.files import closing_fd, open_folder, open_private
from cellwall.config.load import candidates
from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path
from cellwall.core.types import Action, Json, UseTool

ADMINISTRATOR = "/etc/cellwall/policy.toml"
PROJECT_FILES = (".cellwall/policy.toml", ".claude/settings.json", ".claude/settings.local.json")
FLEET_POLICY_NAME = "policy of the fleet"
"""As people see it: the file is in the state folder, and changed by `cellwall fleet publish`."""
_NAME = "policy.toml"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def absolute(path: str) -> str:
    """The path without links resolved, in one spelling: `os.path.abspath` keeps two slashes at the
    start, which name the same folder here."""
    return "/" + os.path.abspath(path).lstrip("/")


def is_given(named: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether rules also judge a person's own request: the person or the administrator wants it."""
    return bool(named) or is_there(ADMINISTRATOR) or is_there(fleet_policy(environ))


def fleet_policy(environ: Mapping[str, str]) -> str:
    """The policy of all hosts, as the fleet's authority has published it."""
    return os.path.join(state_path(environ), "fleet", _NAME)


def is_shipped(named: Iterable[str]) -> bool:
    """Whether a file is a part of Cellwall, for servers of users without rules. It gets no rule: a
    first file of the user would replace it as a whole, and deny nearly everything."""
    return any(_is_below(absolute(path), _PACKAGE) for path in named)


def user_policy(environ: Mapping[str, str]) -> str:
    """The path of the user's own policy file."""
    return os.path.join(os.path.dirname(candidates(None, environ)[0]), _NAME)


def approved_rules_file(named: Sequence[str], environ: Mapping[str, str]) -> str:
    """The file to which a rule is added that a person has approved: where files are named in the
    configuration the user's own is not read, and a rule in it would have no effect."""
    return named[-1] if named else user_policy(environ)


def project_files(cwd: str) -> Iterator[str]:
    """The policy files of all projects around a folder: an inner project hides no outer one."""
    folder = absolute(cwd)
    home = os.path.expanduser("~")
    while folder not in {"/", home}:
        there = (os.path.join(folder, name) for name in PROJECT_FILES)
        yield from (path for path in there if is_there(path))
        folder = os.path.dirname(folder)


def project_folder(action: Action) -> str:
    """The directory on the host in which the action was asked for: projects around it forbid."""
    if isinstance(action.operation, UseTool):
        return action.operation.cwd
    return action.asked_in or os.getcwd()


def shown_source(source: str, *, cwd: str, environ: Mapping[str, str]) -> str:
    """The file and line of a rule as people and models may see them; no other host path.

    A project's file is shown relative to the working directory, the user's own from `~`. A file
    elsewhere was named by the person who started Cellwall, so its base name is enough.
    """
    path, colon, line = source.rpartition(":")
    if not (colon and line.isdigit()):
        path, colon, line = source, "", ""
    path = os.path.expanduser(path)  # a policy file below the home directory is shown with `~`
    if not os.path.isabs(path):
        return source  # `built-in`
    return f"{_shown_path(path, cwd, environ)}{colon}{line}"


def _shown_path(path: str, cwd: str, environ: Mapping[str, str]) -> str:
    if path == ADMINISTRATOR:
        return path
    here = absolute(cwd)
    new = (os.path.join(here, name) for name in PROJECT_FILES)  # a file about to be written
    if path in project_files(here) or path in new:
        return os.path.relpath(path, here)
    home = os.path.expanduser("~")
    # An agent chooses its working directory: below `/` or `/home` no directory name is shown.
    if os.path.dirname(path) != here and home != "/" and _is_below(path, home):
        return os.path.join("~", os.path.relpath(path, home))
    name = os.path.basename(path)
    return f"your own {name}" if path == user_policy(environ) else name


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def is_there(path: str) -> bool:
    """A file without permission to stat counts as present: the error then says it is unreadable."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


FOLDER, NAME = "policy", "trusted.json"
_MAX_BYTES = 1 << 20
_MAX_ENTRIES = 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")

Trusted = frozenset[tuple[str, str]]
"""Real paths, each with the SHA-256 of the trusted content."""
TrustStamp = tuple[str, int, int, int, int]
"""The state folder, and the list's times of modification and change, size and inode."""


@dataclass(frozen=True, slots=True)
class TrustedPolicy:
    """One trusted file."""

    path: str
    sha256: str
    when: str

    def to_json(self) -> dict[str, Json]:
        return {"path": self.path, "sha256": self.sha256, "when": self.when}


def trust_stamp(environ: Mapping[str, str]) -> TrustStamp:
    """A value that differs after every change of the list."""
    home = os.path.realpath(state_path(environ))
    try:
        found = os.stat(os.path.join(home, FOLDER, NAME))
    except OSError:
        return (home, 0, 0, 0, 0)
    return (home, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def read_trusted(found: TrustStamp) -> Trusted:
    """The trusted files. A list that is unreadable, or that others could write, trusts nothing."""
    try:
        entries = read_entries(found[0])
    except (CellwallError, OSError):
        return frozenset()
    return frozenset((each.path, each.sha256) for each in entries)


def encode_entries(entries: Iterable[TrustedPolicy]) -> bytes:
    """The list as bytes; raises for a list that could not be read again."""
    rows = [each.to_json() for each in entries]
    data = json.dumps({"version": 1, "trusted": rows}, indent=1).encode("ascii") + b"\n"
    if len(rows) > _MAX_ENTRIES or len(data) > _MAX_BYTES:
        raise CellwallError(
            "too many policy files are trusted already",
            hint="Remove some with `cellwall policy untrust`.",
            code="CW-POLICY-TRUST",
        )
    return data


def read_entries(home: str) -> list[TrustedPolicy]:
    """Raise for a list that is malformed, or open to other users."""
    try:
        os.close(open_folder(home))
        with (
            closing_fd(open_folder(os.path.join(home, FOLDER))) as folder,
            closing_fd(open_private(NAME, os.O_RDONLY, folder)) as file,
        ):
            raw = os.pread(file, _MAX_BYTES + 1, 0)
    except FileNotFoundError:
        return []
    return _decode(raw)


def _decode(raw: bytes) -> list[TrustedPolicy]:
    try:
        found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.keys() != {"version", "trusted"}:
        raise broken_list()
    listed = found["trusted"]
    if found["version"] != 1 or not isinstance(listed, list) or len(listed) > _MAX_ENTRIES:
        raise broken_list()
    return [_entry(each) for each in listed]


def _entry(found: object) -> TrustedPolicy:
    if not isinstance(found, dict) or found.keys() != {"path", "sha256", "when"}:
        raise broken_list()
    path, digest, when = (found[key] for key in ("path", "sha256", "when"))
    if not (isinstance(path, str) and isinstance(digest, str) and isinstance(when, str)):
        raise broken_list()
    if not os.path.isabs(path) or _DIGEST.fullmatch(digest) is None:
        raise broken_list()
    return TrustedPolicy(path, digest, when)


def broken_list(detail: str = "") -> CellwallError:
    """The error for a list that cannot be used."""
    return CellwallError(
        "the list of trusted policy files is broken or open to other users: nothing is trusted",
        hint=f"Remove {FOLDER}/{NAME} in the state folder, then trust the files anew.",
        code="CW-POLICY-TRUST",
        detail=detail,
    )
