"""Encodings of single characters inside of ordinary text: entities, percent signs, escapes.

What is read is not only what was encoded but the lines around it, since a sentence can be encoded
in part.
"""

# ruff: noqa: PLC0415  # late imports: few texts need the table of entity names
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from cellwall.guard.ctext.inline import (
    EditReader,
    Edits,
    EntityNames,
    PatchedLines,
    TokenKind,
    find_equals,
    find_tokens,
    patch_lines,
)
from cellwall.parsing.budget import AttemptBudget

_MAX_EDITS = 100_000
_FEW_URLS = 400
"""Looked at one by one; more of them take longer than all of the text at once."""
_QUOTED_SIGNS = (b"=\n", b"=\r\n", b"=3D", b"=20")
"""With one of them it is likely, and worth a look inside of what reads as a URL as well."""
_BEGIN_CHARS = 240
"""In which it shows whether a text is JSON."""

has_token_signs = re.compile(rb"[&?%\\=+]").search
"""Each token has at least one of these, and so has an escaped line in JSON."""


class DecodedLines(NamedTuple):
    """Lines in which something was read, and how."""

    via: tuple[str, ...]
    lines: PatchedLines


CharactersLeft = Callable[[], int]
"""How many characters may still be decoded."""


def decode_inline(
    plain: str, image: bytes, attempts: AttemptBudget, room: CharactersLeft
) -> Iterator[DecodedLines]:
    """The lines that hold encoded characters, decoded."""
    data = image if plain.isascii() else plain.encode()
    reader = EditReader(image, data, _MAX_EDITS)
    if b"\\n" in image and plain[:_BEGIN_CHARS].lstrip()[:1] in ("{", "["):
        yield from _patched("json", image, data, _counted(reader.of_strings(), attempts), room)
    tokens, are_all = find_tokens(image, max(attempts.left, 0))
    attempts.spend_many(len(tokens) + (not are_all))
    kinds = dict.fromkeys(tokens.kinds(), tokens)
    if TokenKind.URL in kinds and any(sign in image for sign in _QUOTED_SIGNS):
        kinds[TokenKind.QUOTED] = find_equals(image, tokens, _FEW_URLS)
    for kind, those in kinds.items():
        name, text_of = _READERS[kind]

        def read(start: int, end: int, text_of: _TextOf = text_of) -> str | None:
            return text_of(plain[start:end])

        edits = _counted(reader.of_tokens(those, kind, _entity_names(), read), attempts)
        yield from _patched(name, image, data, edits, room)


def _counted(found: tuple[Edits, bool], attempts: AttemptBudget) -> Edits:
    edits, are_all = found
    if not are_all:
        attempts.exhaust()
    return edits


def _patched(
    name: str, image: bytes, data: bytes, edits: Edits, room: CharactersLeft
) -> Iterator[DecodedLines]:
    if edits:
        yield DecodedLines((name,), patch_lines(image, data, edits, room()))


@cache
def _entity_names() -> EntityNames:
    from html.entities import html5

    return EntityNames(
        [(name.encode(), text.encode()) for name, text in html5.items() if name.endswith(";")]
    )


def _entity_text(entity: str) -> str | None:
    from cellwall.parsing.html.tokens import characters

    text = characters(entity)
    return text if text != entity else None


def _quoted_text(run: str) -> str | None:
    try:
        text = bytes.fromhex(run.replace("=", "")).decode()
    except UnicodeDecodeError:
        text = bytes.fromhex(run[1:]).decode("latin-1") if run.count("=") == 1 else ""
    return text if text and "".join(text.split()).isprintable() else None


def _no_text(_: str) -> str | None:
    """C reads these itself."""
    raise MemoryError


_TextOf = Callable[[str], "str | None"]
_READERS: dict[TokenKind, tuple[str, _TextOf]] = {
    TokenKind.HTML: ("html", _entity_text),
    TokenKind.URL: ("url", _no_text),
    TokenKind.ESCAPES: ("escapes", _no_text),
    TokenKind.QUOTED: ("quoted-printable", _quoted_text),
}
