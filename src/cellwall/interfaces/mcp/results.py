"""The result of a call for the agent's client.

All content from the sandbox or the network goes through `Outcome.shown`: redacted, neutralised and
marked as data. Outside of the marks are only images, numbers and our own text: a message that names
a file or an address is attacker-controlled as well, so it is inside the marks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from cellwall.core.errors import CellwallError
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, Status
from cellwall.core.showing import one_line
from cellwall.core.types import Json

Structured: TypeAlias = dict[str, Json]

_MAX_IMAGES = 8
_MAX_IMAGE_BYTES = 4 * 1024 * 1024
_MAX_IMAGES_BYTES = 8 * 1024 * 1024
_MAX_FINDINGS = 100
_MAX_WORDS = 600
_MAX_NAME = 80
# Errors whose messages are written in this interface and quote only the agent's own input.
_OWN_MESSAGES = frozenset(
    {
        "CW-BAD-ARGUMENT", "CW-BAD-PACKAGE", "CW-BAD-REGISTRY", "CW-BUSY", "CW-INTERNAL",
        "CW-NO-QUESTION", "CW-NO-SESSION", "CW-SANDBOX-ENDED", "CW-TOO-MANY-SESSIONS",
        "CW-UNKNOWN-LANGUAGE",
    }
)  # fmt: skip
_PART = re.compile(r"[a-z_]{1,20}")
"""`Finding.where` for parts of a result; other values are untrusted field names."""
# The declared type is untrusted, and clients pass the bytes to their decoders: check the magic.
_IMAGES = {"png": (b"\x89PNG\r\n\x1a\n", "image/png"), "jpeg": (b"\xff\xd8\xff", "image/jpeg")}
_LIMIT_HINTS = {
    LimitName.WALL: "Do less at a time, or in pieces.",
    LimitName.CPU: "Do less at a time, or in pieces.",
    LimitName.MEMORY: "Work on less data at a time.",
    LimitName.OUTPUT: "Print less, or write it to a file.",
}

INTERNAL = ErrorInfo("CW-INTERNAL", "internal error", "Try again; if it stays, report it.")


def result_of(outcome: Outcome, *, session: str | None) -> CallToolResult:
    """The result of an action. A failed program is a result; a refused action is an error."""
    blocks: list[ContentBlock] = []
    if outcome.shown:
        blocks.append(TextContent(text=_replace_surrogates(outcome.shown)))
    images, left_out = _images(outcome.results)
    notes = [*_notes(outcome), *([f"{left_out} images are left out."] if left_out else [])]
    if notes or not blocks:
        blocks.append(TextContent(text=_replace_surrogates("\n".join(notes) or "Done.")))
    return CallToolResult(
        content=[*blocks, *images],
        structured_content=_outcome_json(outcome, session),
        is_error=outcome.status in {Status.DENIED, Status.ERROR},
    )


def refusal(error: CellwallError | ErrorInfo, *, session: str | None = None) -> CallToolResult:
    """The result of a call that never became an action."""
    info = error if isinstance(error, ErrorInfo) else ErrorInfo.of(error)
    return CallToolResult(
        content=[TextContent(text=_replace_surrogates(_error_line(info)))],
        structured_content=_plain(Status.ERROR, session, error=info),
        is_error=True,
    )


def session_result(text: str, *, session: str | None) -> CallToolResult:
    """The result of a session tool; our own text."""
    return CallToolResult(
        content=[TextContent(text=text)],
        structured_content=_plain(Status.OK, session, output=text),
    )


def _notes(outcome: Outcome) -> list[str]:
    """Our own notes outside of the marks, for clients that show only text."""
    notes = []
    if outcome.error is not None:
        notes.append(_error_line(outcome.error))
    elif outcome.limit is not None:
        hint = _LIMIT_HINTS.get(outcome.limit, "Use less of it.")
        notes.append(f"Ended by the {outcome.limit.value} limit. {hint}")
    elif outcome.status is Status.FAILED:
        notes.append(f"Exit code {outcome.exit_code}.")
    if outcome.truncated:
        notes.append("The output was longer and is cut.")
    if outcome.state == "lost":
        notes.append("The variables of this sandbox are lost; its files are not.")
    notes += [f"Note: {_kind_of(finding)}." for finding in outcome.findings[:_MAX_FINDINGS]]
    return list(dict.fromkeys(notes))  # duplicates add nothing


def _kind_of(finding: Finding) -> str:
    fields = _finding(finding)
    rule = f", rule {fields['rule']}" if "rule" in fields else ""
    where = f", in {fields['where']}" if "where" in fields else ""
    return f"{fields['category']}, {fields['severity']}{rule}{where}"


def _finding(finding: Finding) -> Structured:
    """A finding without its message, which may quote code or a page."""
    fields: Structured = {
        "category": one_line(finding.category, most=_MAX_NAME),
        "severity": finding.severity,
    }
    if finding.rule:
        fields["rule"] = one_line(finding.rule, most=_MAX_NAME)
    if _PART.fullmatch(finding.where):
        fields["where"] = finding.where
    return fields


def _words(text: str) -> str:
    """Text outside of the marks: one bounded line without invisible characters."""
    return one_line(text, most=_MAX_WORDS)


def _error_line(error: ErrorInfo) -> str:
    fields = _error(error)
    return " ".join(filter(None, (fields["message"], f"[{error.code}]", fields["hint"])))


def _error(error: ErrorInfo) -> dict[str, str]:
    message = error.message if error.code in _OWN_MESSAGES else ""
    return {"code": error.code, "message": _words(message), "hint": _words(error.hint)}


def _outcome_json(outcome: Outcome, session: str | None) -> Structured:
    fields = _plain(outcome.status, session, error=outcome.error, output=outcome.shown)
    return {
        **fields,
        "exit_code": outcome.exit_code,
        "limit": outcome.limit.value if outcome.limit else None,
        "truncated": outcome.truncated,
        "findings": [_finding(each) for each in outcome.findings[:_MAX_FINDINGS]],
        "decision": _decision(outcome),
        "audit_id": outcome.audit_id,
    }


def _decision(outcome: Outcome) -> Structured:
    """The decision without the rule's file, which is a host path (ERR-1)."""
    decision = outcome.decision
    return {
        "verdict": decision.verdict.word,
        "rule": _words(decision.rule),
        "reason": _words(decision.reason),
    }


def _plain(
    status: Status, session: str | None, *, error: ErrorInfo | None = None, output: str = ""
) -> Structured:
    return {
        "status": status.value,
        "exit_code": None,
        "limit": None,
        "truncated": False,
        "output": _replace_surrogates(output),
        "findings": [],
        "decision": None,
        "error": _error(error) if error else None,
        "audit_id": "",
        "session": session,
    }


def _images(results: Sequence[Json]) -> tuple[list[ImageContent], int]:
    """Valid images within the limits, and the number of images left out."""
    images: list[ImageContent] = []
    room, left_out = _MAX_IMAGES_BYTES, 0
    for each in results:
        for form, (magic, mime) in _IMAGES.items():
            text = each.get(form) if isinstance(each, Mapping) else None
            if not isinstance(text, str):
                continue
            data = _decode_base64(text)
            is_odd = data is None or not data.startswith(magic) or len(data) > _MAX_IMAGE_BYTES
            if data is None or is_odd or len(data) > room or len(images) >= _MAX_IMAGES:
                left_out += 1
                continue
            room -= len(data)
            images.append(ImageContent(data=base64.b64encode(data).decode("ascii"), mime_type=mime))
            break  # the other formats show the same image
    return images, left_out


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _replace_surrogates(text: str) -> str:
    """Without lone surrogates, which JSON text cannot contain."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
