"""Skills and proposals, as lines for a person and as plain data for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.types import Json
    from cellwall.runtime.skills import Proposal, Skill


def summary(skill: Skill) -> str:
    """A skill in some words."""
    files = f"{len(skill.files)} files, {skill.size_bytes} bytes"
    return f"{skill.name}, {files}, signed by {one_line(', '.join(skill.signers))}"


def state_line(name: str, found: Skill | CellwallError) -> str:
    """An approved skill, or why it cannot be used."""
    if isinstance(found, CellwallError):
        return f"{name}  NOT USABLE: {found.message} [{found.code}]"
    return f"{name}  ok: {summary(found)}"


def when(proposal: Proposal) -> str:
    """The time of a proposal."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(proposal.made_s))


def proposal_line(proposal: Proposal) -> str:
    """A proposal that waits."""
    return f"{proposal.id}  proposes {proposal.name}, by {proposal.by}, {when(proposal)}"


def skill_json(skill: Skill) -> dict[str, Json]:
    """A skill for programs."""
    return {
        "name": skill.name,
        "digest": skill.digest,
        "files": len(skill.files),
        "size_bytes": skill.size_bytes,
        "signers": list(skill.signers),
    }


def state_json(name: str, found: Skill | CellwallError) -> dict[str, Json]:
    """The same with whether it can be used."""
    if isinstance(found, CellwallError):
        return {"name": name, "ok": False, "code": found.code, "reason": found.message}
    return {"ok": True, **skill_json(found)}


def proposal_json(proposal: Proposal) -> dict[str, Json]:
    """A proposal for programs."""
    return {
        "id": proposal.id,
        "name": proposal.name,
        "by": proposal.by,
        "source": proposal.source,
        "made_s": proposal.made_s,
    }
