"""The approved skills of one user and the keys whose signatures count: the user's own, and those
listed in the configuration.

Every load verifies the skill at that moment: a store changed behind our back is detected on use,
and no result is cached.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

from cellwall.core.errors import (
    BadInput,
    CellwallError,
    ConfigError,
    Denied,
    KeyFailed,
    SkillRefused,
)
from cellwall.core.keys import SigningKey, load_key, make_key
from cellwall.core.limits import MIB
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.skills import Skill
from cellwall.core.standing_grants import GrantKind, GrantsPort, StandingGrant
from cellwall.skills.folders import (
    RETIRED,
    UNFINISHED,
    SkillFolders,
    closing_fd,
    names_in,
    open_directory,
    remove_folder,
    write_folder,
)
from cellwall.skills.loader import VerifiedSkill, verify
from cellwall.skills.manifest import MANIFEST_NAME, MAX_BYTES, MAX_FILES, check_name

OWN_NAME = "cellwall-skills"


def trusted_keys(
    home: str, listed: Sequence[str], *, approver: PublicKey | None = None
) -> tuple[PublicKey, ...]:
    """The user's own key first, or in its place that of the approver, whose private part no process
    can read. An unreadable key is a refusal, not one key less."""
    own = approver or own_key(home)
    keys = [] if own is None else [own]
    try:
        keys += map(PublicKey.parse, listed)
    except BadNote as error:
        raise ConfigError(f"[skills] trusted_keys: {error}") from None
    return tuple(dict.fromkeys(keys))


def own_key(home: str) -> PublicKey | None:
    """The user's own key, if it exists."""
    try:
        return load_key(_own_path(home), OWN_NAME).public
    except FileNotFoundError:
        return None


def signing_key(home: str, *, path: str | None = None, signer: str | None = None) -> SigningKey:
    """The user's own key, created if necessary; or the key in the named file."""
    if path is None:
        if signer is not None:
            raise BadInput(
                "a signer's name goes with a key of its own",
                hint="Name the key's file with --key.",
                code="CW-USAGE",
            )
        try:
            return load_key(_own_path(home), OWN_NAME)
        except FileNotFoundError:
            return make_key(_own_path(home), OWN_NAME)
    try:
        return load_key(path, signer or OWN_NAME)
    except FileNotFoundError:
        raise KeyFailed(
            "there is no such key file", hint="Make one: openssl genpkey -algorithm ed25519"
        ) from None
    except BadNote:
        raise BadInput(
            "a signer's name has neither spaces nor plus signs", code="CW-USAGE"
        ) from None


def _own_path(home: str) -> str:
    return os.path.join(home, "keys", "skills.pem")


MAX_SKILLS = 256


class SkillStore:
    """Implements `SkillsPort`. Safe for threads and processes."""

    def __init__(
        self,
        home: str,
        trusted: Sequence[str],
        *,
        grants: GrantsPort | None = None,
        approver: PublicKey | None = None,
    ) -> None:
        self._home = home
        self._trusted = tuple(trusted)
        self._grants, self._approver = grants, approver
        self._folders = SkillFolders(home)

    def trusted_keys(self) -> tuple[PublicKey, ...]:
        return trusted_keys(self._home, self._trusted, approver=self._approver)

    def survey_stored(self) -> Mapping[str, Skill | CellwallError]:
        """`survey` without the approver's signatures: what could be signed."""
        return self._survey(None)

    def load(self, names: Sequence[str]) -> tuple[Skill, ...]:
        """The named skills, verified now; the first that fails refuses all."""
        wanted = [check_name(name) for name in dict.fromkeys(names)]
        if not wanted:
            return ()
        keys = self._stored_keys()
        skills: list[Skill] = []
        with self._folders.open_shared("approved") as approved:
            for name in wanted:
                skills.append(_load(approved, name, keys, self._grants).skill)
                _check_budget(skills)
        return tuple(skills)

    def survey(self) -> Mapping[str, Skill | CellwallError]:
        """Each approved skill, or why it cannot be used."""
        return self._survey(self._grants)

    def _stored_keys(self) -> tuple[PublicKey, ...]:
        """Of manifests in the store, where the approver's signature decides if there is a key: also
        of those that were approved before."""
        return tuple(dict.fromkeys((*self.trusted_keys(), *filter(None, [own_key(self._home)]))))

    def _survey(self, grants: GrantsPort | None) -> Mapping[str, Skill | CellwallError]:
        keys = self._stored_keys()
        results: dict[str, Skill | CellwallError] = {}
        with self._folders.open_shared("approved") as approved:
            for name in names_in(approved):
                try:
                    results[name] = _load(approved, check_name(name), keys, grants).skill
                except CellwallError as error:
                    results[name] = error
        return results

    def add(self, loaded: VerifiedSkill) -> bool:
        """Add a verified skill; returns whether it replaced one of its name.

        Written beside its place and moved there by rename: a reader sees the complete old or new
        skill. The old one is restored if this is interrupted in between.
        """
        skill = loaded.skill
        name = check_name(skill.name)
        with self._folders.open_exclusive("approved") as approved:
            there = names_in(approved)
            if name not in there and len(there) >= MAX_SKILLS:
                raise BadInput(
                    f"there are {MAX_SKILLS} skills already",
                    hint="Remove one that is not needed.",
                    code="CW-SKILL-TOO-MANY",
                )
            draft = UNFINISHED + secrets.token_hex(8)
            files = {**skill.files, MANIFEST_NAME: loaded.note}
            write_folder(approved, draft, files, skill.executables)
            if name in there:
                os.rename(name, RETIRED + name, src_dir_fd=approved, dst_dir_fd=approved)
            os.rename(draft, name, src_dir_fd=approved, dst_dir_fd=approved)
        return name in there

    def remove(self, name: str) -> None:
        """Remove a skill, also one that fails verification."""
        check_name(name)
        with self._folders.open_exclusive("approved") as approved:
            if name not in names_in(approved):
                raise _unknown(name)
            remove_folder(approved, name)


def skill_grant(name: str, digest: str) -> StandingGrant:
    """What the approver signs: all files of a skill, under its name."""
    return StandingGrant(GrantKind.SKILL, name, digest)


def _load(
    approved: int, name: str, keys: Sequence[PublicKey], grants: GrantsPort | None
) -> VerifiedSkill:
    try:
        folder = open_directory(name, at=approved)
    except FileNotFoundError:
        raise _unknown(name) from None
    except OSError as error:  # a link or a file in its place
        raise SkillRefused(
            f"the entry of the skill {name} is not a folder",
            hint=f"Remove {name}, then add it again from its source.",
            code="CW-SKILL-CHANGED",
            detail=str(error),
        ) from None
    with closing_fd(folder):
        try:
            loaded = verify(folder, keys, name=name)
        except SkillRefused as error:
            raise SkillRefused(
                f"skill {name}: {error.message}",
                hint=error.hint,
                code=error.code,
                detail=error.detail,
            ) from None
    if grants is not None:
        try:
            grants.require(skill_grant(name, loaded.skill.digest))
        except Denied as error:
            raise SkillRefused(
                f"skill {name}: {error.message}", hint=error.hint, code="CW-SKILL-UNSIGNED"
            ) from None
    return loaded


def _check_budget(skills: Sequence[Skill]) -> None:
    size = sum(skill.size_bytes for skill in skills)
    count = sum(len(skill.files) for skill in skills)
    if size > MAX_BYTES or count > MAX_FILES:
        raise SkillRefused(
            f"the skills of one action may have {MAX_BYTES // MIB} MiB and {MAX_FILES} files "
            "together",
            hint="Name only those that it needs.",
            code="CW-SKILL-TOO-LARGE",
        )


def _unknown(name: str) -> BadInput:
    return BadInput(
        f"there is no approved skill {name}",
        hint="`cellwall skills list` lists them; `cellwall skills add` adds one.",
        code="CW-SKILL-UNKNOWN",
    )
