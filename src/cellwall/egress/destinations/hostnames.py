"""Canonical host names for requests and rules, or a refusal (NET-2, NET-3). Pure.

A host is compared, resolved, recorded and dialled in canonical form only. So a name that two
parsers could read as different hosts is refused before any comparison:

1. Only letters, digits, `-`, `_` and `.` of ASCII: no NUL, CR, LF, space, `%`, `@`, `:`, `/`.
2. Other letters become an A-label by UTS 46 and IDNA 2008, and read back as the same label.
3. One trailing dot is dropped; empty, long and malformed labels are refused.
4. The last label is no number: `2852039166`, `127.1` and `0x7f.1` are addresses to a resolver.
5. A label that looks like another one is refused: mixed scripts, and letters that look like Latin.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import idna
from publicsuffixlist import PublicSuffixList

from cellwall.core.errors import EgressRefused
from cellwall.core.text import INVISIBLE
from cellwall.egress.destinations.addresses import Address

_MAX_NAME = 253
_MAX_LABEL = 63
_MEND = "Name the host as DNS does, such as api.example.com."

_ASCII_OK = re.compile(r"[A-Za-z0-9._\-]*")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_CANONICAL = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A part of an address for `inet_aton` and URL parsers: decimal, octal, hexadecimal."""
_OCTET = r"(?:0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_QUAD = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_V6 = re.compile(r"[0-9A-Fa-f:.]{2,45}")
"""Without `%`: a zone id names an interface of the host, and defeats comparisons."""

# The scripts that UAX 31 recommends for identifiers, by the first word of a character's name.
# Others are historic or hardly used, and serve mostly to look like something else.
_SCRIPTS = frozenset(
    {
        *("ARABIC", "ARMENIAN", "BENGALI", "BOPOMOFO", "CJK", "CYRILLIC", "DEVANAGARI", "ETHIOPIC"),
        *("GEORGIAN", "GREEK", "GUJARATI", "GURMUKHI", "HANGUL", "HEBREW", "HIRAGANA", "KANNADA"),
        *("KATAKANA", "KHMER", "LAO", "LATIN", "MALAYALAM", "MYANMAR", "ORIYA", "SINHALA", "TAMIL"),
        *("TELUGU", "THAANA", "THAI", "TIBETAN"),
    }
)
_SCRIPT_OF_WORD = {
    "ARABIC-INDIC": "ARABIC",
    "EXTENDED": "ARABIC",  # EXTENDED ARABIC-INDIC DIGIT
    "IDEOGRAPHIC": "CJK",  # IDEOGRAPHIC ITERATION MARK
    "KATAKANA-HIRAGANA": "KATAKANA",  # the prolonged sound mark
}
# UTS 39, "highly restrictive": the only scripts that are written together in one word.
_TOGETHER = (
    frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "CJK", "BOPOMOFO"}),
    frozenset({"LATIN", "CJK", "HANGUL"}),
)
# A label of these alone reads as a Latin one: letters of Cyrillic, Greek, Armenian, Georgian,
# Hebrew, Ethiopic, Thai and Lao.
_LIKE_LATIN = frozenset(
    "асԁеһіјӏорԗԛѕԝхуъьҽпгѵѡ"
    "αηικνορτυχω"
    "ագզէլհյնոսւօ"
    "იოყჽჿ"
    "דוחיןסם"
    "ሀሁሃሠሡሰሱሲቀቁበቡነኑኒከኮዐዑዕዖፀፁፐ"
    "ทนบพรหเแดลปฟม"
    "ບປຍຮຣຫອພຟຝ"
)
# Between Latin letters these read as a slash, a hyphen or an l, so that the rest looks like a path.
_LIKE_SIGNS = frozenset("ノソゾンー一丨丶丿")
# Latin letters that are no accented ASCII letter, and that are mistaken for none. Left out: dotless
# i and j, script a and g, small capitals and the like.
_OWN_LATIN = frozenset("ßæœøđðþłħŋə")


def host_name(text: str) -> str:
    """The canonical form of a host name: lower-case A-labels without a trailing dot."""
    # A Unicode label is never longer than its A-label; IDNA takes long over long texts.
    if not text or len(text) > _MAX_NAME + 1:
        raise bad_host("a host's name has 1 to 253 characters")
    labels = _plain_labels(text) if text.isascii() else _mapped_labels(text)
    name = ".".join(labels)
    if len(name) > _MAX_NAME:
        raise bad_host("the host's name is longer than 253 characters")
    for label in labels:
        if _LABEL.fullmatch(label) is None:
            raise bad_host(
                "a part of the host's name is empty, too long, or has a hyphen at an end"
            )
    last = labels[-1]
    if _NUMBER.fullmatch(last) or "_" in last:
        raise bad_host("the host's name ends in a number or an underscore, as no domain does")
    if "xn--" in name:
        _check_looks([_shown(label) for label in labels])
    return name


@lru_cache(maxsize=4096)  # few distinct names; refusals are not cached
def host_of(text: str) -> str | Address:
    """The host of a request: `192.0.2.1` or `[2001:db8::1]` as an address, else `host_name`."""
    # Without brackets the colons of IPv6 are ambiguous with the one before a port.
    if text.startswith("[") or _QUAD.fullmatch(text):
        found = address_of(text)
        if found is None:
            raise bad_host("what stands in brackets is no IPv6 address")
        return found
    return host_name(text)


def address_of(text: str) -> Address | None:
    """The address that a text is in a strict form, IPv6 with or without brackets; else None."""
    if _QUAD.fullmatch(text):
        return IPv4Address(text)
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if _V6.fullmatch(text) is None:
        return None
    try:
        return IPv6Address(text)
    except AddressValueError:
        return None


def is_below(host: str, above: str) -> bool:
    """Whether `*.above` stands for this host.

    Only in the canonical form: `evil.com\\0.example.com` ends like one that does. And not through
    a public suffix: `*.amazonaws.com` is not for `s3.amazonaws.com`, where names are anybody's.
    """
    return (
        host.endswith(f".{above}")
        and _CANONICAL.fullmatch(host) is not None
        and len(public_suffix(host)) < len(above)
    )


def is_public_suffix(host: str) -> bool:
    """Whether anybody can have a name below it: `com`, `co.uk`, `github.io`."""
    return public_suffix(host) == host


@lru_cache(maxsize=4096)
def public_suffix(host: str) -> str:
    """The part of a canonical name below which anybody can have a name; never empty."""
    # Unknown last labels count as public: a list that is too old must not open anything.
    return _suffixes().publicsuffix(host, accept_unknown=True) or host


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def bad_host(message: str) -> EgressRefused:
    """What is no host's name; the name is not repeated, since it may hold anything."""
    return EgressRefused(message, hint=_MEND, code="CW-BAD-HOST")


def _plain_labels(text: str) -> list[str]:
    if _ASCII_OK.fullmatch(text) is None:
        raise bad_host("the host's name has a character that no host's name has")
    return text.lower().removesuffix(".").split(".")


def _mapped_labels(text: str) -> list[str]:
    """UTS 46: full width, upper case and other dots become what every resolver would ask for."""
    if INVISIBLE.search(text) or not text.isprintable():
        raise bad_host("the host's name has a character that cannot be seen")
    try:
        # std3_rules would refuse `_`; every ASCII character is looked at again right after.
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
        labels = mapped.removesuffix(".").split(".")
        found = [
            label if label.isascii() else idna.alabel(label).decode("ascii") for label in labels
        ]
    except (idna.IDNAError, UnicodeError):
        raise bad_host("the host's name is none by IDNA 2008") from None
    return _plain_labels(".".join(found))


def _shown(label: str) -> str:
    """A label as people see it. What does not read back as itself has a second meaning."""
    if not label.startswith("xn--"):
        return label
    try:
        shown = idna.ulabel(label)
        again = idna.alabel(shown).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        again = shown = ""
    if again != label or shown.isascii():
        raise bad_host("a part of the host's name starts with xn-- and is no valid A-label")
    return shown


def _check_looks(labels: list[str]) -> None:
    """Refuses what a person would read as another name (`labels` as people see them)."""
    scripts = [_scripts(label) for label in labels]
    for label, found in zip(labels, scripts, strict=True):
        if len(found) > 1 and not any(found <= together for together in _TOGETHER):
            raise bad_host("a part of the host's name mixes scripts, so it can look like another")
        if "LATIN" in found and not _LIKE_SIGNS.isdisjoint(label):
            raise bad_host("a part of the host's name has a letter that looks like a sign")
    # A last label that is plainly of the same script shows what the rest is, as .рф does.
    plain = frozenset() if _looks_latin(labels[-1]) else scripts[-1]
    for label, found in zip(labels, scripts, strict=True):
        if _looks_latin(label) and found != plain:
            raise bad_host("a part of the host's name looks like Latin letters and is not")


def _looks_latin(label: str) -> bool:
    """Digits of other scripts count: their zero looks like o, their one like l."""
    letters = [char for char in label if not char.isascii()]
    return bool(letters) and all(char in _LIKE_LATIN or char.isdecimal() for char in letters)


def _scripts(label: str) -> frozenset[str]:
    return frozenset(found for char in label if (found := _script(char)))


def _script(char: str) -> str:
    """Empty for digits, hyphens and underscores, which go with every script."""
    if char.isascii():
        return "LATIN" if char.isalpha() else ""
    if char == "·":  # Catalan `l·l`: IDNA allows it between two l alone
        return "LATIN"
    word = unicodedata.name(char, "").partition(" ")[0]
    script = _SCRIPT_OF_WORD.get(word, word)
    # Free combining marks are refused as well: they change a letter, or hide on it.
    if script not in _SCRIPTS:
        raise bad_host("the host's name has a letter of a script that is not used for names")
    if script == "LATIN" and char not in _OWN_LATIN and not _is_accented(char):
        raise bad_host("the host's name has a rare Latin letter that looks like another")
    return script


def _is_accented(char: str) -> bool:
    first = unicodedata.normalize("NFD", char)[0]
    return first.isascii() or first in _OWN_LATIN
