"""Trusts and untrusts policy files of projects, logged.

A project's policy comes from the author of the project, so its allow rules apply only after a
person has seen them. As with `direnv allow`, trust is bound to that content: any change ends it.
  (1) read the file once; the text shown, digested and trusted is the same;
  (2) write the intent; a failed write refuses (AUD-1);
  (3) rewrite the list under its lock;
  (4) write the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cellwall.audit.files import closing_fd, locked, make_folder, open_folder, replace_file
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.policy.policy_file import load_policy_file
from cellwall.policy.rules import Layer, Rule
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.policy_places import (
    FOLDER,
    NAME,
    PROJECT_FILES,
    TrustedPolicy,
    broken_list,
    encode_entries,
    project_files,
    read_entries,
)
from cellwall.runtime.recording import AdminChange

__all__ = ["Offered", "PolicyTrust"]


@dataclass(frozen=True, slots=True)
class Offered:
    """A project's file as read once: exactly this content is shown and trusted."""

    path: str
    """With all symbolic links resolved."""
    file: str
    """As shown to people."""
    sha256: str
    rules: tuple[Rule, ...]
    is_trusted: bool = False


class PolicyTrust:
    """The list of one state folder, for a person who reads or changes it."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)

    def entries(self) -> list[TrustedPolicy]:
        """All entries; raises for a broken list, which trusts nothing."""
        with _map_os_errors():
            return read_entries(self._home)

    def offered(self, paths: Sequence[str], *, cwd: str) -> list[Offered]:
        """The named files, or those of the current project."""
        known = {(each.path, each.sha256) for each in self.entries()}
        user = os.path.expanduser("~")
        found = []
        for path in _select_paths(paths, cwd):
            file = load_policy_file(path, Layer.PROJECT, home=user)  # (1)
            real = os.path.realpath(path)
            is_trusted = (real, file.sha256) in known
            found.append(Offered(real, file.file, file.sha256, file.rules, is_trusted))
        if not found:
            raise BadInput(
                "there is no project policy file here",
                hint="Name one, or write one with `cellwall policy init`.",
                code="CW-NO-POLICY",
            )
        return found

    def trust(self, offered: Offered, *, who: Principal) -> None:
        """Trust the content that was read."""
        refuse_agents("trust in a project's rules")
        require(self._settings, who, Permission.POLICY_WRITE)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        with self._change("trust", offered.path, who, {"sha256": offered.sha256}) as entries:
            entries[offered.path] = TrustedPolicy(offered.path, offered.sha256, when)

    def untrust(self, path: str, *, cwd: str, who: Principal) -> list[str]:
        """Remove a file, or all files of a folder; returns the real paths.

        The files themselves need not exist.
        """
        real = os.path.realpath(os.path.join(cwd, path))
        meant = {real, *(os.path.realpath(os.path.join(real, name)) for name in PROJECT_FILES)}
        listed = [each.path for each in self.entries() if each.path in meant]
        if not listed:
            raise BadInput(
                f"{path[:200]!r} is not trusted",
                hint="`cellwall policy trust --list` shows what is.",
                code="CW-NOT-TRUSTED",
            )
        for each in listed:
            with self._change("untrust", each, who, {}) as entries:
                entries.pop(each, None)
        return listed

    @contextmanager
    def _change(
        self, what: str, path: str, who: Principal, known: dict[str, Json]
    ) -> Iterator[dict[str, TrustedPolicy]]:
        """(2) to (4), around the caller's change of the entries, keyed by path."""
        change = AdminChange(EventKind.CONFIG, what, path, known)
        with change.recorded_in(self._home, self._settings, who), _map_os_errors():
            place = os.path.join(self._home, FOLDER)
            make_folder(place)
            with closing_fd(open_folder(place)) as folder, locked(folder):
                entries = {each.path: each for each in read_entries(self._home)}
                yield entries
                replace_file(NAME, encode_entries(entries.values()), folder)


def _select_paths(paths: Sequence[str], cwd: str) -> Iterator[str]:
    if not paths:
        yield from project_files(cwd)
    for path in paths:
        whole = os.path.join(cwd, path)
        if not os.path.isdir(whole):
            yield whole
            continue
        inside = [os.path.join(whole, name) for name in PROJECT_FILES]
        yield from (each for each in inside if os.path.lexists(each))


@contextmanager
def _map_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise broken_list(str(error)) from error
