"""Skills and proposals as text for a person and as JSON.

A review shows every byte of a proposal, with invisible characters escaped.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.core.skills import Skill
from cellwall.core.text import INVISIBLE
from cellwall.core.types import Json
from cellwall.interfaces.cli.output import json_fields
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.skills import Review, SkillProposal

# Finds candidates quickly; each is then tested for printability.
_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")


def escape_invisible(text: str) -> tuple[str, int]:
    """The text with invisible characters escaped, and their number.

    Attack: instructions for a model hidden in characters that a terminal does not show.
    """
    count = 0

    def show(match: re.Match[str]) -> str:
        nonlocal count
        character = match[0]
        if character.isprintable() and not INVISIBLE.match(character):
            return character
        count += 1
        return f"\\u{{{ord(character):x}}}"

    return _SUSPECT.sub(show, text), count


def summary_of(review: Review) -> str:
    """The proposer, the files and the changes, one line each."""
    proposal, manifest = review.proposal, review.draft.manifest
    lines = [
        f"skill     {proposal.name}"
        + (" (replaces the approved one)" if review.approved is not None else ""),
        f"proposed  {format_time(proposal)} by {proposal.by}, from {proposal.source}",
        f"digest    {manifest.digest}",
    ]
    for file in manifest.files:
        mark = ", executable" if file.executable else ""
        state = review.state_of(file.path)
        lines.append(f"{state:9} {file.path} ({file.size_bytes} bytes{mark})")
    lines += [f"removed   {path}" for path in review.removed]
    return "".join(f"{one_line(line)}\n" for line in lines)


def text_of(review: Review) -> str:
    """The whole content of every file."""
    parts = []
    for path, content in sorted(review.draft.files.items()):
        parts.append(f"\n=== {one_line(path)}\n")
        if b"\0" in content:
            parts.append(f"NOT SHOWN: {len(content)} bytes of binary data\n")
            continue
        # Invalid UTF-8 is escaped: one such byte must not hide the rest of a file.
        text, hidden = escape_invisible(content.decode("utf-8", "backslashreplace"))
        if hidden:
            parts.append(f"!!! {hidden} invisible characters, written as \\u{{...}}\n")
        parts.append("".join(f"| {line}\n" for line in text.split("\n")))
    return "".join(parts)


def as_json(review: Review) -> dict[str, Json]:
    """A review as JSON; file contents as text with invalid UTF-8 escaped."""
    proposal, draft = review.proposal, review.draft
    files: list[Json] = [
        {
            "path": file.path,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "executable": file.executable,
            "state": review.state_of(file.path),
            "text": draft.files[file.path].decode("utf-8", "backslashreplace"),
        }
        for file in draft.manifest.files
    ]
    return {
        **proposal_json(proposal),
        "digest": draft.manifest.digest,
        "replaces": review.approved is not None,
        "files": files,
        "removed": list(review.removed),
    }


def summary(skill: Skill) -> str:
    """A skill in one line."""
    files = f"{len(skill.files)} files, {skill.size_bytes} bytes"
    return f"{skill.name}, {files}, signed by {one_line(', '.join(skill.signers))}"


def state_line(name: str, state: Skill | CellwallError) -> str:
    """An approved skill, or why it cannot be used."""
    if isinstance(state, CellwallError):
        return f"{name}  NOT USABLE: {state.message} [{state.code}]"
    return f"{name}  ok: {summary(state)}"


def format_time(proposal: SkillProposal) -> str:
    """The time of a proposal."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(proposal.made_s))


def proposal_line(proposal: SkillProposal) -> str:
    """A waiting proposal."""
    return f"{proposal.id}  proposes {proposal.name}, by {proposal.by}, {format_time(proposal)}"


def skill_json(skill: Skill) -> dict[str, Json]:
    """A skill as JSON."""
    return {
        "name": skill.name,
        "digest": skill.digest,
        "files": len(skill.files),
        "size_bytes": skill.size_bytes,
        "signers": list(skill.signers),
    }


def state_json(name: str, state: Skill | CellwallError) -> dict[str, Json]:
    """An approved skill with whether it can be used."""
    if isinstance(state, CellwallError):
        return {"name": name, "ok": False, "code": state.code, "reason": state.message}
    return {"ok": True, **skill_json(state)}


def proposal_json(proposal: SkillProposal) -> dict[str, Json]:
    """A proposal as JSON."""
    return json_fields(proposal, "id", "name", "by", "source", "made_s")
