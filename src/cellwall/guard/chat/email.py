"""E-mail from its MIME source: headers, all alternatives, names of files (GRD-7)."""

from __future__ import annotations

import re

from cellwall.guard.channels import html
from cellwall.guard.channels.markdown_clean import one_line, visible
from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.chat.mime import MAILS, Header, Part, parts

SHOWN_HEADERS = frozenset({"subject", "from", "to", "cc", "date"})
UNSEEN_HEADERS = frozenset(
    {
        "reply-to",
        "sender",
        "return-path",
        "comments",
        "keywords",
        "organization",
        "thread-topic",
        "thread-index",
        "list-id",
        "list-unsubscribe",
        "list-post",
        "list-help",
        "list-subscribe",
        "list-owner",
        "list-archive",
        "content-description",
        "x-mailer",
    }
)
"""Headers that get a piece each; the others form one piece."""
_ONCE = frozenset(
    {
        "subject",
        "from",
        "to",
        "reply-to",
        "date",
        "sender",
        "content-type",
        "content-transfer-encoding",
    }
)
_MAX_ENCODED = 3
"""Mails in the encoding of a mail, within each other; beyond them they are text."""
_OF_THE_FORM = frozenset({"mime-version", "content-type", "content-transfer-encoding"})
_DOMAIN = re.compile(r"@([\w.-]{1,253})")
_WORD = re.compile(r"[^\W\d_]{4,}")
_MAX_COMPARED = 200_000
_FEW_WORDS = 8
_MAX_MISSING = 0.4
"""Share of the plain part's words that the HTML part lacks when both say the same."""
# What begins a header, a part, another mail in a mailbox, or ends the mail (RFC 5321 4.5.2).
_BEGINS_SOMETHING = re.compile(r"^(?=[!-9;-~]{1,100}:|--|\.|From )", re.MULTILINE)


def read(text: str) -> Extracted:
    """Headers and parts; input without headers is treated as a body."""
    return _read(text, depth=0)


def _read(text: str, *, depth: int) -> Extracted:
    gathering = Gathering()
    alternatives: dict[str, dict[str, list[Part]]] = {}
    for part in parts(text):
        _headers(gathering, part)
        for name in part.names:
            start = part.headers[0].start if part.headers else part.start
            gathering.add(name, f"part {part.number} name", start, part.start, is_hidden=False)
        if part.group:
            kinds = alternatives.setdefault(part.group, {})
            kinds.setdefault(part.kind, []).append(part)
        if part.group and part.kind == "text/plain":
            continue  # clients show the HTML part instead, see below
        is_hidden = part.number.endswith("around") or not _is_shown(part.kind)
        if part.kind in MAILS and not part.is_verbatim and depth < _MAX_ENCODED:
            inner = _read(part.text, depth=depth + 1)
            place = (part.start, part.end)
            prefix = f"part {part.number}"
            gathering.take(inner, lambda *_, at=place: at, prefix=prefix, is_hidden=is_hidden)
            continue
        _body(gathering, part, is_hidden=is_hidden)
    for kinds in alternatives.values():
        _compare(gathering, kinds.get("text/plain", []), kinds.get("text/html", []))
    return gathering.result()


def clean(text: str) -> str:
    """The body of a plain mail. No line of it can be taken for a header or for the mail's end,
    wherever a program puts it; for the value of a header there is `clean_header`."""
    return _BEGINS_SOMETHING.sub(" ", visible(text))


def clean_header(text: str) -> str:
    """The value of a header on one line, so that it cannot start a second header."""
    return one_line(text)


def _is_shown(kind: str) -> bool:
    """Whether a mail client shows such a part inline."""
    return kind.startswith(("text/", "message/", "multipart/")) or kind == "application/xhtml+xml"


def _headers(gathering: Gathering, part: Part) -> None:
    seen: dict[str, Header] = {}
    prefix = "" if part.number == "1" else f"part {part.number} "
    for header in part.headers:
        name = header.name.lower()
        if name in _ONCE and name in seen:
            gathering.note("mail-twice", header.start, header.end)
        seen.setdefault(name, header)
        if name in SHOWN_HEADERS or name in UNSEEN_HEADERS:
            where, is_hidden = f"{prefix}header {header.name}", name in UNSEEN_HEADERS
            text = header.value
        else:
            # Anybody can name a header anything, and a boundary too.
            where, is_hidden = f"{prefix}other headers", True
            text = f"{header.name}: {header.value}"
            if name in _OF_THE_FORM:
                where = "headers of the form"
        gathering.add(text, where, header.start, header.end, is_hidden=is_hidden)
    if "reply-to" in seen and "from" in seen:
        answers, sender = _domains(seen["reply-to"]), _domains(seen["from"])
        if answers and sender and not answers <= sender:
            gathering.note("mail-reply-to", seen["reply-to"].start, seen["reply-to"].end)


def _domains(header: Header) -> set[str]:
    """The last two labels of each domain: replies may go to another host of the same domain."""
    return {".".join(name.lower().split(".")[-2:]) for name in _DOMAIN.findall(header.value)}


def _body(gathering: Gathering, part: Part, *, is_hidden: bool) -> None:
    where = f"part {part.number} {part.kind}"
    if part.is_page:

        def place(start: int, end: int) -> tuple[int, int]:
            if part.is_verbatim:
                return part.start + start, part.start + end
            return part.start, part.end

        gathering.take(html.read(part.text), place, prefix=where, is_hidden=is_hidden)
    elif part.text.strip():
        gathering.add(part.text, where, part.start, part.end, is_hidden=is_hidden)


def _compare(gathering: Gathering, plain: list[Part], rich: list[Part]) -> None:
    """People see the HTML part; a model is often given the plain part."""
    plain_words = {
        word
        for part in rich
        for piece in html.read(part.text[:_MAX_COMPARED]).pieces
        if not piece.is_hidden
        for word in _words(piece.text)
    }
    for part in plain:
        words = _words(part.text)
        missing = words - plain_words
        differs = len(missing) >= _FEW_WORDS and len(missing) > _MAX_MISSING * len(words)
        if rich and differs:
            gathering.note("mail-alternatives", part.start, part.end)
        _body(gathering, part, is_hidden=bool(rich) and differs)


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text[:_MAX_COMPARED])}
