"""Proposals: skills written by an agent and not signed by a person. None of them can be loaded.

quarantine/ID/proposal.json    its name, who proposed it and when
quarantine/ID/files/           its files
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cellwall.core.errors import BadInput, CellwallError, SkillRefused
from cellwall.core.ids import check_id, new_id
from cellwall.core.limits import KIB
from cellwall.skills.folders import (
    UNFINISHED,
    SkillFolders,
    closing_fd,
    names_in,
    open_directory,
    read_named,
    remove_folder,
    write_folder,
)
from cellwall.skills.loader import SkillDraft, collect
from cellwall.skills.manifest import build_manifest, check_name

MAX_PROPOSALS = 64
PREFIX = "prop"
_NOTE = "proposal.json"
_FILES = "files/"
_MAX_NOTE_BYTES = 4 * KIB
_MAX_WORD = 200
_LAST_DAY_S = 1e11


@dataclass(frozen=True, slots=True)
class SkillProposal:
    """The metadata of a proposal; `source` is the sandbox it came from."""

    id: str
    name: str
    by: str
    source: str
    made_s: float


class Quarantine:
    """The proposals of one user."""

    def __init__(self, home: str) -> None:
        self._folders = SkillFolders(home)

    def put(
        self,
        name: str,
        files: Mapping[str, bytes],
        executables: frozenset[str],
        *,
        by: str,
        source: str,
    ) -> SkillProposal:
        """Store a proposal for review by a person."""
        build_manifest(name, files, executables)  # enforces limits and unambiguous names
        proposal = SkillProposal(
            new_id(PREFIX), name, by[:_MAX_WORD], source[:_MAX_WORD], time.time()
        )
        metadata = {key: value for key, value in asdict(proposal).items() if key != "id"}
        everything = {_FILES + path: content for path, content in files.items()}
        with self._folders.open_exclusive("quarantine") as folder:
            if len(names_in(folder)) >= MAX_PROPOSALS:  # an agent must not fill the disk
                raise BadInput(
                    f"{MAX_PROPOSALS} proposals are waiting already",
                    hint="Look at them with `cellwall skills review`; approve or remove some.",
                    code="CW-SKILL-QUARANTINE-FULL",
                )
            draft = UNFINISHED + secrets.token_hex(8)
            write_folder(
                folder,
                draft,
                {_NOTE: json.dumps(metadata).encode(), **everything},
                frozenset(_FILES + path for path in executables),
            )
            os.rename(draft, proposal.id, src_dir_fd=folder, dst_dir_fd=folder)
        return proposal

    def list_proposals(self) -> list[SkillProposal]:
        """All proposals, oldest first."""
        with self._folders.open_shared("quarantine") as folder:
            proposals = [_read_any(folder, name) for name in names_in(folder)]
        return sorted(proposals, key=lambda proposal: proposal.made_s)

    def open(self, proposal_id: str) -> tuple[SkillProposal, SkillDraft]:
        """A proposal with its files, read once: the files shown are the files that can be
        signed."""
        check_id(proposal_id, what="proposal id")
        with self._folders.open_shared("quarantine") as folder:
            if proposal_id not in names_in(folder):
                raise _unknown(proposal_id)
            proposal = _read(folder, proposal_id)
            with (
                closing_fd(open_directory(proposal_id, at=folder)) as top,
                closing_fd(open_directory(_FILES.rstrip("/"), at=top)) as files,
            ):
                return proposal, collect(files, proposal.name)

    def remove(self, proposal_id: str) -> None:
        check_id(proposal_id, what="proposal id")
        with self._folders.open_exclusive("quarantine") as folder:
            if proposal_id not in names_in(folder):
                raise _unknown(proposal_id)
            remove_folder(folder, proposal_id)


def _read_any(folder: int, proposal_id: str) -> SkillProposal:
    """A damaged proposal must not hide the others."""
    try:
        return _read(folder, proposal_id)
    except CellwallError:
        return SkillProposal(proposal_id, "damaged", by="", source="", made_s=0.0)


def _read(folder: int, proposal_id: str) -> SkillProposal:
    try:
        with closing_fd(open_directory(proposal_id, at=folder)) as top:
            note = json.loads(read_named(top, _NOTE, max_bytes=_MAX_NOTE_BYTES) or b"")
        words = {key: str(note[key])[:_MAX_WORD] for key in ("by", "source")}
        made_s = float(note["made_s"])
        if not 0 <= made_s <= _LAST_DAY_S:
            raise ValueError("no time that a clock tells")
        return SkillProposal(proposal_id, check_name(str(note["name"])), made_s=made_s, **words)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SkillRefused(
            f"the proposal {proposal_id} is damaged",
            hint=f"Remove it: cellwall skills remove {proposal_id}",
            code="CW-SKILL-PROPOSAL",
            detail=str(error),
        ) from None


def _unknown(proposal_id: str) -> BadInput:
    return BadInput(
        f"there is no proposal {proposal_id}",
        hint="`cellwall skills list` lists them.",
        code="CW-SKILL-PROPOSAL",
    )
