"""Trusts and untrusts policy files of projects, logged.

A project's policy comes from the author of the project, so its allow rules apply only after a
person has seen them. As with `direnv allow`, trust is bound to that content: any change ends it.
  (1) read the file once; the text shown, digested and trusted is the same;
  (2) ask for the approver's passphrase, where `approvals.key` is configured: the processes that
      read the file then believe a signature, and not the list (POL-13);
  (3) write the intent; a failed write refuses (AUD-1);
  (4) rewrite the list under its lock, and sign;
  (5) write the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cellwall.audit.files import closing_fd, locked, make_folder, open_folder, replace_file
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.keys import SigningKey
from cellwall.core.outcomes import EventKind
from cellwall.core.standing_grants import GrantKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.policy.policy_file import load_policy_file
from cellwall.policy.rules import Layer, Rule
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.policies import policy_grants
from cellwall.runtime.policy_places import (
    FOLDER,
    NAME,
    PROJECT_FILES,
    TrustedPolicy,
    absolute,
    broken_list,
    encode_entries,
    project_files,
    read_entries,
    user_policy,
)
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.signed_grants import signed_grants

__all__ = ["Offered", "PolicyTrust", "parsed_as"]


@dataclass(frozen=True, slots=True)
class Offered:
    """A policy file as read once: exactly this content is shown and trusted."""

    path: str
    """With all symbolic links resolved."""
    file: str
    """As shown to people."""
    sha256: str
    rules: tuple[Rule, ...]
    place: str
    """Its absolute path, with the links in it: what the approver signs."""
    is_trusted: bool = False

    @property
    def is_project(self) -> bool:
        """Whether it is a project's, and applies there; else wherever it is named."""
        return parsed_as(self.place) is Layer.PROJECT


class PolicyTrust:
    """The list of one state folder, for a person who reads or changes it."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)
        self._grants = signed_grants(self._home, self._settings)

    def entries(self) -> list[TrustedPolicy]:
        """All entries; raises for a broken list, which trusts nothing."""
        with _map_os_errors():
            return read_entries(self._home)

    def offered(self, paths: Sequence[str], *, cwd: str) -> list[Offered]:
        """The named files, or those of the current project."""
        entries = self.entries()
        user = os.path.expanduser("~")
        found = []
        for path in _select_paths(paths, cwd):
            file = load_policy_file(path, parsed_as(path), home=user)  # (1)
            real = os.path.realpath(path)
            offer = Offered(real, file.file, file.sha256, file.rules, absolute(path))
            found.append(replace(offer, is_trusted=self._is_trusted(offer, entries)))
        if not found:
            raise BadInput(
                "there is no project policy file here",
                hint="Name one, or write one with `cellwall policy init`.",
                code="CW-NO-POLICY",
            )
        return found

    def is_trusted(self, offered: Offered) -> bool:
        """Whether the content is trusted now."""
        return self._is_trusted(offered, self.entries())

    def counts(self, entry: TrustedPolicy) -> bool:
        """Whether an entry of the list is believed: with a key, only if the approver has signed."""
        if self._grants is None:
            return True
        signed = [each for each in self._grants.listed() if each.digest == entry.sha256]
        return any(os.path.realpath(each.subject) == entry.path for each in signed)

    def _is_trusted(self, offered: Offered, entries: Sequence[TrustedPolicy]) -> bool:
        listed = (offered.path, offered.sha256) in {(each.path, each.sha256) for each in entries}
        if self._grants is None:
            return listed
        return self._has_signed(offered.place, offered.sha256)

    def _has_signed(self, path: str, sha256: str) -> bool:
        grants = self._grants
        return grants is not None and all(map(grants.is_signed, policy_grants(path, sha256)))

    @property
    def needs_signature(self) -> bool:
        """Whether a key is configured: then all files that allow something need a signature."""
        return self._grants is not None

    def unlock(self, ask: AskPassphrase | None) -> SigningKey | None:
        """(2) The approver's key for `trust`; None: no key is configured."""
        if self._grants is None:
            return None
        command = "cellwall policy trust"
        return self._grants.key.ask_for("trust in a policy file", ask, command=command)

    def trust(self, offered: Offered, *, who: Principal, signer: SigningKey | None = None) -> None:
        """Trust the content that was read; `signer` is what `unlock` has returned."""
        refuse_agents("trust in a project's rules")
        require(self._settings, who, Permission.POLICY_WRITE)
        signer = signer or self.unlock(None)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        with self._change("trust", offered.path, who, {"sha256": offered.sha256}) as entries:
            entries[offered.path] = TrustedPolicy(offered.path, offered.sha256, when)
            if self._grants is not None and signer is not None:
                grants = policy_grants(offered.place, offered.sha256)
                self._grants.sign(grants, signer, replaces=True)

    def untrust(self, path: str, *, cwd: str, who: Principal) -> list[str]:
        """Remove a file, or all files of a folder; returns the real paths.

        The files themselves need not exist.
        """
        named = absolute(os.path.join(cwd, path))
        real = os.path.realpath(named)
        meant = {real, *(os.path.realpath(os.path.join(real, name)) for name in PROJECT_FILES)}
        # First, since a broken list must not keep the signatures.
        was_signed = self._withdraw(
            [named, *(os.path.join(named, name) for name in PROJECT_FILES)], meant
        )
        listed = [each.path for each in self.entries() if each.path in meant]
        if not (listed or was_signed):
            raise BadInput(
                f"{path[:200]!r} is not trusted",
                hint="`cellwall policy trust --list` shows what is.",
                code="CW-NOT-TRUSTED",
            )
        gone = listed or [real]
        for each in gone:
            with self._change("untrust", each, who, {}) as entries:
                entries.pop(each, None)
        return gone

    def _withdraw(self, places: Sequence[str], real: Collection[str]) -> bool:
        """End all signatures under these files: by their places, also those that are hidden from
        the list at the moment, and by their real paths. Whether any counted."""
        if self._grants is None:
            return False
        before = {(each.kind, each.subject) for each in self._grants.listed()}
        subjects = {
            (each.kind, each.subject) for path in places for each in policy_grants(path, "")
        }
        subjects |= {
            (kind, subject)
            for kind, subject in before
            if kind in (GrantKind.POLICY, GrantKind.PROJECT) and os.path.realpath(subject) in real
        }
        for kind, subject in subjects:
            self._grants.withdraw(kind, subject)
        return not subjects.isdisjoint(before)

    @contextmanager
    def _change(
        self, what: str, path: str, who: Principal, known: dict[str, Json]
    ) -> Iterator[dict[str, TrustedPolicy]]:
        """(3) to (5), around the caller's change of the entries, keyed by path."""
        change = AdminChange(EventKind.CONFIG, what, path, known)
        with change.recorded_in(self._home, self._settings, who), _map_os_errors():
            place = os.path.join(self._home, FOLDER)
            make_folder(place)
            with closing_fd(open_folder(place)) as folder, locked(folder):
                entries = {each.path: each for each in read_entries(self._home)}
                yield entries
                replace_file(NAME, encode_entries(entries.values()), folder)


def parsed_as(path: str) -> Layer:
    """The layer for the rules of a file: a rule of a project may do less than those of others."""
    place = absolute(path)
    is_project = any(place.endswith(f"/{name}") for name in PROJECT_FILES)
    is_project &= place != absolute(user_policy(os.environ))
    return Layer.PROJECT if is_project else Layer.SESSION


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
