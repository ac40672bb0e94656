"""What was learnt from the record, and how it is written down as a policy to paste. Pure.

Texts of the record stand in it only escaped, in a comment of one line or in one TOML string.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.core.showing import escaped, one_line

_SHOWN_MOST = 8
_REFUSED_MOST = 200


@dataclass(frozen=True, slots=True)
class Proposed:
    """A rule, and what a person should know before they write it."""

    rule: str
    stands_for: tuple[str, ...] = ()
    """What was seen, where the rule is wider than one of them."""
    also_allows: str = ""
    answers: str = ""
    """The question that it lifts; empty: it is a plain allow."""

    def table(self, reason: str) -> dict[str, str]:
        """As `[[rule]]` of a policy file."""
        told = {"verdict": "allow", "rule": self.rule, "reason": reason}
        return {**told, "answers": self.answers} if self.answers else told


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that no rule is proposed for."""

    call: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """What follows from what was seen."""

    proposed: tuple[Proposed, ...] = ()
    refused: tuple[Refused, ...] = ()
    seen: int = 0
    allowed_now: int = 0
    """How many of them the rules allow by now."""


def to_toml(lesson: Lesson) -> str:
    """A policy of its own; what is not proposed stands in its comments."""
    count = lesson.seen - lesson.allowed_now
    lines = [
        f"# Proposed by `cellwall policy learn`, from {count} calls that no rule allows.",
        "# Whoever asked for them may have been misled: read each line before you keep it.",
        "",
    ]
    plain = [each for each in lesson.proposed if not each.answers]
    answering = [each for each in lesson.proposed if each.answers]
    if plain or not answering:
        lines += ["[permissions]", "allow = ["]
        for each in plain:
            lines += [f"  # {text}" for text in _comments(each)]
            lines.append(f"  {quoted(each.rule)},")
        lines.append("]")
    for each in answering:
        lines += [*rule_lines(each, "proposed by `cellwall policy learn`"), ""]
    if lesson.refused:
        lines += ["", "# No rule is proposed for these:"]
    for refused in lesson.refused[:_REFUSED_MOST]:
        lines += [f"#   {escaped(refused.call)}", f"#     {one_line(refused.reason, most=300)}"]
    if len(lesson.refused) > _REFUSED_MOST:
        lines.append(f"#   and {len(lesson.refused) - _REFUSED_MOST} more")
    return "\n".join(lines) + "\n"


def rule_lines(each: Proposed, reason: str) -> list[str]:
    """One `[[rule]]`, with what a person should know in comments above it."""
    told = [f"# {text}" for text in _comments(each)]
    return [*told, "[[rule]]", *(f"{key} = {quoted(v)}" for key, v in each.table(reason).items())]


def _comments(each: Proposed) -> Iterator[str]:
    if each.stands_for:
        yield f"Stands for {len(each.stands_for)} that were seen:"
        yield from (f"  {escaped(text)}" for text in each.stands_for[:_SHOWN_MOST])
        if len(each.stands_for) > _SHOWN_MOST:
            yield f"  and {len(each.stands_for) - _SHOWN_MOST} more"
    if each.also_allows:
        yield f"Also allows {escaped(each.also_allows)}."


def quoted(text: str) -> str:
    """A TOML string of one line, whatever the text is; what is not plainly seen is written out."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(char: str) -> str:
    if char in {'"', "\\"}:
        return f"\\{char}"
    if escaped(char) == char:
        return char
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # no text at all, and TOML has no word for it
        return "?"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
