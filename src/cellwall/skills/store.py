"""The approved skills of one user. Whoever wants one gets verified bytes, checked at that moment.

A store that was changed behind our back is found when it is used: nothing is remembered as good.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

from cellwall.core.errors import BadInput, CellwallError, ConfigError, KeyFailed, SkillRefused
from cellwall.core.keys import SigningKey, load_key, make_key
from cellwall.core.limits import MIB
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.skills import Skill
from cellwall.skills.folders import closing_fd, open_directory, write_folder
from cellwall.skills.loader import VerifiedSkill, verify
from cellwall.skills.manifest import MANIFEST_NAME, MAX_BYTES, MAX_FILES, check_name
from cellwall.skills.state_folders import RETIRED, UNFINISHED, SkillFolders, names_in, remove_folder

OWN_NAME = "cellwall-skills"


def trusted_keys(home: str, listed: Sequence[str]) -> tuple[PublicKey, ...]:
    """Own first. A key that cannot be read is a refusal, not a key less."""
    own = own_key(home)
    keys = [] if own is None else [own]
    try:
        keys += map(PublicKey.parse, listed)
    except BadNote as error:
        raise ConfigError(f"[skills] trusted_keys: {error}") from None
    return tuple(dict.fromkeys(keys))


def own_key(home: str) -> PublicKey | None:
    """The user's own, if one was made."""
    try:
        return load_key(_own_path(home), OWN_NAME).public
    except FileNotFoundError:
        return None


def signing_key(home: str, *, path: str | None = None, signer: str | None = None) -> SigningKey:
    """The own key, made if there is none yet; or the one in a file that was named."""
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
    """Keeps `SkillsPort`. May be used by many threads and processes at once."""

    def __init__(self, home: str, trusted: Sequence[str]) -> None:
        self._home = home
        self._trusted = tuple(trusted)
        self._folders = SkillFolders(home)

    def trusted_keys(self) -> tuple[PublicKey, ...]:
        return trusted_keys(self._home, self._trusted)

    def load(self, names: Sequence[str]) -> tuple[Skill, ...]:
        """These skills, verified now; the first that does not verify refuses all."""
        wanted = [check_name(name) for name in dict.fromkeys(names)]
        if not wanted:
            return ()
        keys = self.trusted_keys()
        found: list[Skill] = []
        with self._folders.open_shared("approved") as approved:
            for name in wanted:
                found.append(_load(approved, name, keys).skill)
                _check_budget(found)
        return tuple(found)

    def survey(self) -> Mapping[str, Skill | CellwallError]:
        """Each approved skill, or why it cannot be used."""
        keys = self.trusted_keys()
        found: dict[str, Skill | CellwallError] = {}
        with self._folders.open_shared("approved") as approved:
            for name in names_in(approved):
                try:
                    found[name] = _load(approved, check_name(name), keys).skill
                except CellwallError as error:
                    found[name] = error
        return found

    def add(self, loaded: VerifiedSkill) -> bool:
        """Take a verified skill in; returns whether it replaced one of its name.

        Written beside its place and put there by a rename: whoever loads sees the old one or the
        new one, whole. The old one comes back if this is interrupted in between.
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
        """Take a skill out, also one that does not verify any more."""
        check_name(name)
        with self._folders.open_exclusive("approved") as approved:
            if name not in names_in(approved):
                raise _unknown(name)
            remove_folder(approved, name)


def _load(approved: int, name: str, keys: Sequence[PublicKey]) -> VerifiedSkill:
    try:
        folder = open_directory(name, at=approved)
    except FileNotFoundError:
        raise _unknown(name) from None
    except OSError as error:  # a link or a file in its place
        raise SkillRefused(
            f"what lies in the place of the skill {name} is not a folder",
            hint=f"Remove {name}, then add it again from its source.",
            code="CW-SKILL-CHANGED",
            detail=str(error),
        ) from None
    with closing_fd(folder):
        try:
            return verify(folder, keys, name=name)
        except SkillRefused as error:
            raise SkillRefused(
                f"skill {name}: {error.message}",
                hint=error.hint,
                code=error.code,
                detail=error.detail,
            ) from None


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
        hint="`cellwall skills list` tells which there are; `cellwall skills add` adds one.",
        code="CW-SKILL-UNKNOWN",
    )
