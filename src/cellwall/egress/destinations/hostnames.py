"""Canonical host names and URLs for requests and rules, or a refusal (NET-2, NET-3). Pure.

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
from dataclasses import dataclass
from functools import cache, lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal
from urllib.parse import quote, urljoin

import idna
from publicsuffixlist import PublicSuffixList

from cellwall.core.errors import EgressRefused
from cellwall.core.text import INVISIBLE
from cellwall.egress.destinations.addresses import Address

_MAX_NAME = 253
_MAX_LABEL = 63
_HINT = "Name the host as DNS does, such as api.example.com."

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
# Others are historic or rare, and mostly serve homographs.
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
# Latin letters that are no accented ASCII letter, and look like none. Left out: dotless
# i and j, script a and g, small capitals and the like.
_OWN_LATIN = frozenset("ßæœøđðþłħŋə")


def host_name(text: str) -> str:
    """The canonical form of a host name: lower-case A-labels without a trailing dot."""
    # A Unicode label is never longer than its A-label; IDNA takes long over long texts.
    if not text or len(text) > _MAX_NAME + 1:
        raise bad_host("a host name has 1 to 253 characters")
    labels = _plain_labels(text) if text.isascii() else _mapped_labels(text)
    name = ".".join(labels)
    if len(name) > _MAX_NAME:
        raise bad_host("the host name is longer than 253 characters")
    for label in labels:
        if _LABEL.fullmatch(label) is None:
            raise bad_host(
                "a label of the host name is empty, too long, or begins or ends with a hyphen"
            )
    last = labels[-1]
    if _NUMBER.fullmatch(last) or "_" in last:
        raise bad_host("the last label of the host name is a number or has an underscore")
    if "xn--" in name:
        _check_looks([_to_unicode(label) for label in labels])
    return name


@lru_cache(maxsize=4096)  # few distinct names; refusals are not cached
def host_of(text: str) -> str | Address:
    """The host of a request: `192.0.2.1` or `[2001:db8::1]` as an address, else `host_name`."""
    # Without brackets the colons of IPv6 are ambiguous with the one before a port.
    if text.startswith("[") or _QUAD.fullmatch(text):
        address = address_of(text)
        if address is None:
            raise bad_host("the text in brackets is not an IPv6 address")
        return address
    return host_name(text)


def address_of(text: str) -> Address | None:
    """The address in its strict form, IPv6 with or without brackets; None for any other text."""
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


def is_host_in(host: str, pattern: str) -> bool:
    """Whether the pattern, a canonical name or `*.` and a name, stands for this host."""
    if pattern.startswith("*."):
        return is_below(host, pattern[2:])
    return host == pattern


def is_below(host: str, above: str) -> bool:
    """Whether `*.above` stands for this host.

    The host must be canonical: `evil.com\\0.example.com` has the same end. A wildcard does not
    reach across a public suffix: `*.amazonaws.com` does not match `s3.amazonaws.com`, below which
    any customer can have a name.
    """
    return (
        host.endswith(f".{above}")
        and _CANONICAL.fullmatch(host) is not None
        and len(public_suffix(host)) < len(above)
    )


def is_public_suffix(host: str) -> bool:
    """Whether the public can register names below the host: `com`, `co.uk`, `github.io`."""
    return public_suffix(host) == host


@lru_cache(maxsize=4096)
def public_suffix(host: str) -> str:
    """The part of a canonical name below which the public can register names; never empty."""
    # Unknown last labels count as public: an outdated list must not allow a name.
    return _suffixes().publicsuffix(host, accept_unknown=True) or host


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def bad_host(message: str) -> EgressRefused:
    """The error for an invalid host name, which is not repeated: the text comes from the cell."""
    return EgressRefused(message, hint=_HINT, code="CW-BAD-HOST")


def _plain_labels(text: str) -> list[str]:
    if _ASCII_OK.fullmatch(text) is None:
        raise bad_host("the host name has an invalid character")
    return text.lower().removesuffix(".").split(".")


def _mapped_labels(text: str) -> list[str]:
    """UTS 46 maps full width, upper case and other dots to the name that resolvers query."""
    if INVISIBLE.search(text) or not text.isprintable():
        raise bad_host("the host name has an invisible character")
    try:
        # std3_rules would refuse `_`; every ASCII character is checked again below.
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
        labels = mapped.removesuffix(".").split(".")
        a_labels = [
            label if label.isascii() else idna.alabel(label).decode("ascii") for label in labels
        ]
    except (idna.IDNAError, UnicodeError):
        raise bad_host("the host name is invalid by IDNA 2008") from None
    return _plain_labels(".".join(a_labels))


def _to_unicode(label: str) -> str:
    """The Unicode form of a label. A label that does not convert back to itself is ambiguous."""
    if not label.startswith("xn--"):
        return label
    try:
        u_label = idna.ulabel(label)
        again = idna.alabel(u_label).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        again = u_label = ""
    if again != label or u_label.isascii():
        raise bad_host("a label of the host name starts with xn-- and is not a valid A-label")
    return u_label


def _check_looks(labels: list[str]) -> None:
    """Refuse homographs: Unicode labels that a person would read as another name."""
    scripts = [_scripts(label) for label in labels]
    for label, own_scripts in zip(labels, scripts, strict=True):
        if len(own_scripts) > 1 and not any(own_scripts <= together for together in _TOGETHER):
            raise bad_host("a label of the host name mixes scripts and can look like another")
        if "LATIN" in own_scripts and not _LIKE_SIGNS.isdisjoint(label):
            raise bad_host("a label of the host name has a letter that looks like punctuation")
    # A top-level label that is clearly of one script shows the script of the name, as .рф does.
    plain = frozenset() if _looks_latin(labels[-1]) else scripts[-1]
    for label, own_scripts in zip(labels, scripts, strict=True):
        if _looks_latin(label) and own_scripts != plain:
            raise bad_host("a label of the host name looks like Latin letters and is not")


def _looks_latin(label: str) -> bool:
    """Digits of other scripts count: their zero looks like o, their one like l."""
    letters = [char for char in label if not char.isascii()]
    return bool(letters) and all(char in _LIKE_LATIN or char.isdecimal() for char in letters)


def _scripts(label: str) -> frozenset[str]:
    return frozenset(script for char in label if (script := _script(char)))


def _script(char: str) -> str:
    """Empty for digits, hyphens and underscores, which go with every script."""
    if char.isascii():
        return "LATIN" if char.isalpha() else ""
    if char == "·":  # Catalan `l·l`: IDNA allows it between two l alone
        return "LATIN"
    word = unicodedata.name(char, "").partition(" ")[0]
    script = _SCRIPT_OF_WORD.get(word, word)
    # Combining marks without a precomposed form are refused as well: they alter a letter invisibly.
    if script not in _SCRIPTS:
        raise bad_host("the host name has a letter of a script that is not used for names")
    if script == "LATIN" and char not in _OWN_LATIN and not _is_accented(char):
        raise bad_host("the host name has a rare Latin letter that looks like another")
    return script


def _is_accented(char: str) -> bool:
    first = unicodedata.normalize("NFD", char)[0]
    return first.isascii() or first in _OWN_LATIN


MAX_CHARACTERS = 8 * 1024
_URL = re.compile(r"(?i:(https?))://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([1-9][0-9]{0,4}))?")
_NOT_ASCII = re.compile(r"[^\x21-\x7e]+")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A canonical URL."""

    scheme: Literal["http", "https"]
    host: str
    """As `str(host_of(…))` writes it: an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, as sent."""

    @property
    def authority(self) -> str:
        """For the Host header."""
        is_usual = self.port == _PORTS[self.scheme]
        return self.domain.rpartition(":")[0] if is_usual else self.domain

    @property
    def domain(self) -> str:
        """The rule for exactly this host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Parse a URL; `EgressRefused` where two parsers could disagree.

    Not by `urlsplit`, which silently drops tabs and line breaks, accepts user names, and treats
    unknown input as a path.
    """
    if len(text) > MAX_CHARACTERS:
        raise bad_url(f"it is longer than {MAX_CHARACTERS} characters")
    # Browsers read a backslash as a slash; blanks, controls and invisible characters are invalid.
    if not text.isprintable() or " " in text or "\\" in text:
        raise bad_url("it contains a blank, a backslash or an invisible character")
    match = _URL.fullmatch(text)
    if match is None:
        raise bad_url("it does not start with http:// or https:// and a host")
    scheme: Literal["http", "https"] = "https" if match[1].lower() == "https" else "http"
    host, port = _authority(match[2], _PORTS[scheme])
    target = _NOT_ASCII.sub(lambda part: quote(part[0]), (match[3] or "/") + (match[4] or ""))
    if len(target) > MAX_CHARACTERS:
        raise bad_url(f"it is longer than {MAX_CHARACTERS} characters")
    return Url(scheme=scheme, host=host, port=port, target=target)


def resolve_redirect(url: Url, location: bytes) -> Url:
    """The target of a redirect, parsed as strictly as a URL from the user."""
    if len(location) > MAX_CHARACTERS:
        raise bad_url(f"it is longer than {MAX_CHARACTERS} characters", is_redirect=True)
    try:
        text = location.decode("utf-8")
        # Before the join, since `urljoin` drops characters that `parse_url` would refuse.
        if not text or not text.isprintable() or " " in text or "\\" in text:
            raise bad_url("it is empty, or contains a blank or a backslash", is_redirect=True)
        return parse_url(urljoin(str(url), text))
    except ValueError:
        raise bad_url("it cannot be read", is_redirect=True) from None


def domain_of(text: str) -> str:
    """The rule for exactly the host and port of a URL."""
    return parse_url(text).domain


def bad_url(why: str, *, is_redirect: bool = False) -> EgressRefused:
    """The error for a URL, which is not repeated: it may contain a secret."""
    what = "the redirect target" if is_redirect else "the URL"
    return EgressRefused(
        f"{what} is refused: {why}",
        hint="Write it as in https://docs.example.com/page.",
        code="CW-BAD-URL",
    )


def _authority(text: str, default_port: int) -> tuple[str, int]:
    if "@" in text:
        raise bad_url("it contains a user name or a password")
    match = _AUTHORITY.fullmatch(text)
    port = int(match[2] or default_port) if match is not None else 0
    if match is None or port > 0xFFFF:
        raise bad_url("its host is not written as `host` or `host:port`")
    return str(host_of(match[1])), port
