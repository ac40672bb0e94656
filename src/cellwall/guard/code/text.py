"""What can be seen in code of any language without parsing it."""

from __future__ import annotations

import re
import unicodedata

from cellwall.guard.code.collecting import Findings

# Trojan Source (CVE-2021-42574): embeddings, overrides and isolates turn lines around for the
# reader. Plain marks (LRM, RLM) only nudge neutral signs and stand in honest texts.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Signs without any width between letters of a name; runs of tags or variation selectors, which
# carry whole programs. One selector behind a sign, or joiners in an emoji, are nothing special.
_INVISIBLE = re.compile(
    "[A-Za-z0-9_$][\u200b-\u200d\u2060-\u2064\ufeff\u00ad\u180e]+[A-Za-z0-9_$]"
    "|[\U000e0020-\U000e007f]{8,}|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}|[\u200b-\u200d\u2060-\u2064]{8,}"
    "|[\u115f\u1160\u3164\uffa0]"
)
# Begins only where a run begins, or it would be looked at again from each of its signs.
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{1500,}={0,2}")
_ESCAPES = re.compile(r"(?:\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[0-7]{3}){40,}")
_WORD = re.compile(r"[^\W\d]\w*")
# Look like Latin letters; Greek ones that people use as symbols are not among them.
_LOOK_ALIKES = frozenset("асеорхуіјѕԁһӏԛԝАВСЕНІЈКМОРЅТХҮοОΟΑΒΕΖΗΙΚΜΝΡΤΥΧ")  # noqa: RUF001


def look(code: str, findings: Findings) -> None:
    """Signs that deceive a reader, and data that hides from one."""
    for match in _first(_ENCODED, code):
        findings.add("text.encoded", *match.span())
    if "\\" in code:
        for match in _first(_ESCAPES, code):
            findings.add("text.escapes", *match.span())
    if code.isascii():
        return
    for match in _first(_BIDI, code):
        findings.add("text.bidi", *match.span())
    for match in _first(_INVISIBLE, code):
        findings.add("text.invisible", *match.span())


def check_name(name: str, start: int, findings: Findings) -> None:
    """A name that is read as another one: mixed scripts, or letters that are made plain."""
    if name.isascii():
        return
    plain = unicodedata.normalize("NFKC", name)
    is_dressed = plain.isascii() and plain != name  # mathematical or wide letters
    is_mixed = any("a" <= sign.lower() <= "z" for sign in name) and not _LOOK_ALIKES.isdisjoint(
        name
    )
    if is_dressed or is_mixed:
        findings.add("text.look-alike", start, start + len(name))


def check_words(code: str, findings: Findings) -> None:
    """All names of a piece of code that is not parsed."""
    if not code.isascii():
        for match in _WORD.finditer(code):
            check_name(match[0], match.start(), findings)


def _first(pattern: re.Pattern[str], code: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    for match in pattern.finditer(code):
        found.append(match)
        if len(found) >= 5:
            break
    return found
