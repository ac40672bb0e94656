"""Signs, approves and removes skills, logged (SKL-1).

Skills instruct agents, so each is a change of configuration:
  (1) read the skill once; one that does not verify ends here;
  (2) ask for the approver's passphrase, where `approvals.key` is configured (POL-13);
  (3) write the intent with the manifest's digest; a failed write refuses (AUD-1);
  (4) sign, store or remove exactly the content that was read;
  (5) write the outcome.

With `approvals.key` the approver's key takes the place of the user's own, which lies in the state
folder: it signs manifests, and approvals of their digests, which each use of a skill checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, CellwallError, SkillRefused
from cellwall.core.ids import check_id
from cellwall.core.keys import SigningKey
from cellwall.core.notes import PublicKey
from cellwall.core.outcomes import EventKind
from cellwall.core.skills import Skill
from cellwall.core.standing_grants import GrantKind, StandingGrant
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase
from cellwall.runtime.configured_parts import skill_store
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.signed_grants import signed_grants
from cellwall.skills.folders import closing_fd, open_directory, replace_file
from cellwall.skills.instructions import (
    Comparison,
    collect_instructions,
    compare,
    note_name,
)
from cellwall.skills.loader import SkillDraft, VerifiedSkill, collect, verify
from cellwall.skills.loader import sign_draft as signed
from cellwall.skills.manifest import MANIFEST_NAME, MAX_BYTES, MAX_FILES, Manifest, check_name
from cellwall.skills.quarantine import PREFIX, Quarantine, SkillProposal
from cellwall.skills.store import own_key, signing_key, skill_grant

__all__ = [
    "MAX_BYTES",
    "MAX_FILES",
    "Comparison",
    "Review",
    "Signed",
    "SigningKeyChoice",
    "Skill",
    "SkillAdmin",
    "SkillProposal",
]


@dataclass(frozen=True, slots=True)
class SigningKeyChoice:
    """The signing key: the user's own, or one in a file under a name."""

    path: str | None = None
    signer: str | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """The signed manifest, and the public key that others have to trust."""

    manifest: Manifest
    key: PublicKey


@dataclass(frozen=True, slots=True)
class Review:
    """A proposal as read for a person: exactly this content is approved."""

    proposal: SkillProposal
    draft: SkillDraft
    approved: Skill | None
    """The approved skill of that name, if it verifies."""

    def state_of(self, path: str) -> str:
        """The effect of an approval on a file."""
        if self.approved is None or path not in self.approved.files:
            return "new"
        mode_stays = (path in self.approved.executables) == (path in self.draft.executables)
        is_same = self.approved.files[path] == self.draft.files[path] and mode_stays
        return "same" if is_same else "changed"

    @property
    def removed(self) -> tuple[str, ...]:
        there = () if self.approved is None else self.approved.files
        return tuple(path for path in there if path not in self.draft.files)


class SkillAdmin:
    """The skills of one state folder."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)
        self._grants = signed_grants(self._home, self._settings)
        self._store = skill_store(self._home, self._settings)
        self._quarantine = Quarantine(self._home)

    def own_key(self) -> PublicKey | None:
        """The key that signs here: the approver's, or the user's own, if there is one."""
        return own_key(self._home) if self._grants is None else self._grants.key.verifier

    def approved(self) -> Mapping[str, Skill | CellwallError]:
        """Each approved skill, or the error why it cannot be used."""
        return self._store.survey()

    def proposals(self) -> list[SkillProposal]:
        return self._quarantine.list_proposals()

    def sign(
        self,
        folder: str,
        *,
        name: str | None,
        choice: SigningKeyChoice,
        principal: Principal,
        ask: AskPassphrase | None = None,
    ) -> Signed:
        """Sign all files of a folder; the manifest is written into it."""
        refuse_agents("a signature under a skill")
        require(self._settings, principal, Permission.SKILLS_APPROVE)
        with _open_folder(folder) as descriptor:
            chosen = check_name(name or os.path.basename(os.path.abspath(folder)))
            draft = collect(descriptor, chosen)  # (1)
            approver = self._unlock(ask, "sign") if choice.path is None else None  # (2)
            with self._recorded("sign", chosen, principal, draft.manifest.digest) as outcome:
                key = approver or signing_key(self._home, path=choice.path, signer=choice.signer)
                note = signed(draft, key, (key.public,)).note
                replace_file(descriptor, MANIFEST_NAME, note, mode=0o644)
                outcome["key"] = str(key.public)
        return Signed(draft.manifest, key.public)

    def sign_instructions(
        self,
        place: str,
        *,
        name: str | None,
        choice: SigningKeyChoice,
        principal: Principal,
        ask: AskPassphrase | None = None,
    ) -> Signed:
        """Sign a project's instruction files, or one file; the list is written beside them."""
        refuse_agents("a signature under instructions")
        require(self._settings, principal, Permission.SKILLS_APPROVE)
        folder, only = _folder_and_file(place)
        with _open_folder(folder) as descriptor:
            chosen = check_name(name or "instructions")
            draft = collect_instructions(descriptor, chosen, only=only)  # (1)
            approver = self._unlock(ask, "sign --instructions")  # (2)
            with self._recorded("sign", chosen, principal, draft.manifest.digest) as outcome:
                own = None if choice.path is not None else approver
                key = own or signing_key(self._home, path=choice.path, signer=choice.signer)
                note = signed(draft, key, (key.public,)).note
                replace_file(descriptor, note_name(only), note, mode=0o644)
                outcome["key"] = str(key.public)
                self._approve(_instructions_grant(place, draft.manifest.digest), approver)
        return Signed(draft.manifest, key.public)

    def compare_instructions(self, place: str) -> Comparison:
        """Compare instruction files with the content that a trusted key has signed."""
        folder, only = _folder_and_file(place)
        with _open_folder(folder) as descriptor:
            found = compare(descriptor, self._store.trusted_keys(), only=only)
        grant = _instructions_grant(place, found.digest)
        if self._grants is not None and not self._grants.is_signed(grant):
            # Attack: an older list, put back with the files of then.
            raise SkillRefused(
                "the approver has not signed this list of instruction files, or a newer one since",
                hint="Read them, then sign them with `cellwall skills sign --instructions DIR`.",
                code="CW-SKILL-UNSIGNED",
            )
        return found

    def verify(self, folder: str) -> Skill:
        """The skill in a folder, if every byte is signed by a trusted key."""
        return self._verify_folder(folder).skill

    def add(
        self, folder: str, *, principal: Principal, ask: AskPassphrase | None = None
    ) -> tuple[Skill, bool]:
        """Approve a signed skill; True if it replaced another of its name."""
        refuse_agents("the approval of a skill")
        require(self._settings, principal, Permission.SKILLS_APPROVE)
        loaded = self._verify_folder(folder)  # (1)
        approver = self._unlock(ask, "add")  # (2)
        with self._recorded("add", loaded.skill.name, principal, loaded.skill.digest) as outcome:
            outcome["replaced"] = is_replaced = self._store.add(loaded)
            self._approve(skill_grant(loaded.skill.name, loaded.skill.digest), approver)
        return loaded.skill, is_replaced

    def remove(self, name: str, *, principal: Principal) -> None:
        """Remove an approved skill by name, or a proposal by id."""
        require(self._settings, principal, Permission.SKILLS_APPROVE)
        is_proposal = name.startswith(f"{PREFIX}_")
        check_id(name, what="proposal id") if is_proposal else check_name(name)
        with self._recorded("remove", name, principal, None):
            if self._grants is not None and not is_proposal:
                self._grants.withdraw(GrantKind.SKILL, name)
            self._quarantine.remove(name) if is_proposal else self._store.remove(name)

    def propose_folder(
        self, folder: str, *, name: str | None, principal: Principal
    ) -> SkillProposal:
        """Quarantine the files of a folder as a proposal."""
        with _open_folder(folder) as descriptor:
            chosen = check_name(name or os.path.basename(os.path.abspath(folder)))
            draft = collect(descriptor, chosen)  # (1)
        return self.propose(
            chosen, draft.files, draft.executables, source="a folder", principal=principal
        )

    def propose(
        self,
        name: str,
        files: Mapping[str, bytes],
        executables: frozenset[str],
        *,
        source: str,
        principal: Principal,
    ) -> SkillProposal:
        """Quarantine files, unseen by every sandbox, until a person signs them."""
        with self._recorded("propose", check_name(name), principal, None) as outcome:
            by = f"{principal.name} ({principal.interface})"
            made = self._quarantine.put(name, files, executables, by=by, source=source)
            outcome |= {"proposal": made.id, "source": source}
        return made

    def review(self, proposal_id: str) -> Review:
        """A proposal, read once."""
        proposal, draft = self._quarantine.open(proposal_id)
        approved = None
        with suppress(CellwallError):  # missing or invalid
            approved = self._store.load([proposal.name])[0]
        return Review(proposal, draft, approved)

    def approve(
        self,
        review: Review,
        *,
        choice: SigningKeyChoice,
        principal: Principal,
        ask: AskPassphrase | None = None,
    ) -> Skill:
        """Sign the reviewed content, add it to the approved skills, end the proposal."""
        refuse_agents("the approval of a skill")
        require(self._settings, principal, Permission.SKILLS_APPROVE)
        draft, proposal = review.draft, review.proposal  # (1) was `review`
        digest = draft.manifest.digest
        approver = self._unlock(ask, "approve")  # (2)
        with self._recorded("approve", proposal.name, principal, digest) as outcome:
            own = None if choice.path is not None else approver
            key = own or signing_key(self._home, path=choice.path, signer=choice.signer)
            loaded = signed(draft, key, self._store.trusted_keys())
            outcome |= {"proposal": proposal.id, "key": str(key.public)}
            outcome["replaced"] = self._store.add(loaded)
            self._approve(skill_grant(proposal.name, digest), approver)
            self._quarantine.remove(proposal.id)
        return loaded.skill

    def _unlock(self, ask: AskPassphrase | None, command: str) -> SigningKey | None:
        """(2) The approver's key; None: no key is configured."""
        if self._grants is None:
            return None
        name = f"cellwall skills {command}"
        return self._grants.key.ask_for("the approval of a skill", ask, command=name)

    def _approve(self, grant: StandingGrant, approver: SigningKey | None) -> None:
        """Sign the grant, and end those for other contents: an older version is not put back."""
        if self._grants is not None and approver is not None:
            self._grants.sign([grant], approver, replaces=True)

    def _verify_folder(self, folder: str) -> VerifiedSkill:
        with _open_folder(folder) as descriptor:
            return verify(descriptor, self._store.trusted_keys())

    def _recorded(
        self, what: str, name: str, principal: Principal, digest: str | None
    ) -> AbstractContextManager[dict[str, Json]]:
        """(3) and (5), around the caller's (4)."""
        intent: dict[str, Json] = {} if digest is None else {"digest": digest}
        change = AdminChange(EventKind.SKILL, what, name, intent)
        return change.recorded_in(self._home, self._settings, principal)


def _instructions_grant(place: str, digest: str) -> StandingGrant:
    return StandingGrant(GrantKind.INSTRUCTIONS, os.path.realpath(place), digest)


def _folder_and_file(place: str) -> tuple[str, str | None]:
    """A project's folder; or the folder of a single file, and its name."""
    whole = os.path.abspath(place)
    return (whole, None) if os.path.isdir(whole) else os.path.split(whole)


@contextmanager
def _open_folder(folder: str) -> Iterator[int]:
    try:
        # Absolute: a trailing slash would follow a symlink.
        descriptor = open_directory(os.path.abspath(folder))
    except (OSError, ValueError) as error:
        is_there = not isinstance(error, FileNotFoundError | ValueError)
        raise BadInput(
            f"{folder[:200]!r} is not a folder that can be read"
            if is_there
            else f"{folder[:200]!r} does not exist",
            hint="Name the skill's own folder; symbolic links are not followed.",
            code="CW-SKILL-FOLDER",
        ) from None
    with closing_fd(descriptor):
        try:
            yield descriptor
        except OSError as error:
            raise CellwallError(
                "the skill's folder cannot be read or written",
                hint="Check its permissions and the space on its disk.",
                code="CW-SKILL-FOLDER",
                detail=str(error),
            ) from error
