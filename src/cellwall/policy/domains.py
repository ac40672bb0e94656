"""The host that a URL names, and the hosts that a rule names. Pure.

Programs disagree about malformed URLs, and attackers exploit the difference: an ambiguous URL is
refused, never guessed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.policy.rules import BadRule

MAX_URL_CHARACTERS = 8192
MAX_HOST_CHARACTERS = 253
PREFIX = "domain:"

_URL = re.compile(r"(?i:https?)://([^/?#]+)(?:[/?#].*)?")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::(\d{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_QUAD = re.compile(r"(?:(?:0|[1-9]\d{0,2})\.){3}(?:0|[1-9]\d{0,2})")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")

# IDNA 2003 and 2008 map these to different hosts, so a rule for one would open the other.
_DISPUTED = frozenset("ßẞς\u200c\u200d")


def host_of(url: str) -> str:
    """The host of an http or https URL, in the form that rules are compared with."""
    if len(url) > MAX_URL_CHARACTERS:
        raise _bad("the URL is too long")
    # Browsers drop tabs and newlines and read a backslash as a slash; other programs do not.
    if any(char <= " " or char in "\x7f\\" for char in url):
        raise _bad("the URL holds a blank, a control character or a backslash")
    found = _URL.fullmatch(url)
    if found is None:
        raise _bad("the URL does not begin with http:// or https:// and a host")
    if "@" in found[1]:
        raise _bad("the URL has a user name before the host, which can hide the real host")
    authority = _AUTHORITY.fullmatch(found[1])
    if authority is None or int(authority[2] or 0) > 65535:
        raise _bad("the host or port of the URL is not valid")
    try:
        return canonical_host(authority[1])
    except ValueError as error:
        raise _bad(f"the host of the URL {error}") from None


def _bad(problem: str) -> BadInput:
    return BadInput(
        problem, hint="Write a plain URL such as https://example.com/path.", code="CW-BAD-URL"
    )


def canonical_host(host: str) -> str:
    """Lower case, IDNA, no final dot. Raises ValueError with the problem."""
    if host.startswith("["):
        return _address(host)
    host = _ascii(host).lower().removesuffix(".")
    if len(host) > MAX_HOST_CHARACTERS:
        raise ValueError("is too long")
    labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is not a name")
    # 127.1, 0x7f.1 and 2130706433 are all the same machine to some programs.
    if _NUMBER.fullmatch(labels[-1]) and not _is_quad(host):
        raise ValueError("is an address in an unusual form")
    return host


def _is_quad(host: str) -> bool:
    return _QUAD.fullmatch(host) is not None and all(int(part) < 256 for part in host.split("."))


def _address(host: str) -> str:
    try:
        return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
    except ValueError:
        raise ValueError("is not an address") from None


def _ascii(host: str) -> str:
    if host.isascii():
        return host
    if _DISPUTED & set(host):
        raise ValueError("holds a letter that programs read differently")
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("is not a name") from None


@dataclass(frozen=True, slots=True)
class HostPattern:
    """`example.com` is that host alone; `*.example.com` is every host below it, not itself."""

    host: str
    is_wild: bool = False

    @classmethod
    def parse(cls, specifier: str) -> HostPattern:
        """Parses `domain:HOST`, and refuses a pattern for hosts of several owners."""
        if not specifier.startswith(PREFIX):
            raise BadRule(
                "the specifier does not begin with domain:",
                hint=f"Write WebFetch({PREFIX}example.com).",
            )
        text = specifier.removeprefix(PREFIX)
        is_wild = text.startswith("*.")
        start = len(PREFIX) + 2 * is_wild
        name = specifier[start:]
        _refuse_extras(name, start)
        try:
            host = canonical_host(name)
        except ValueError as error:
            raise BadRule(
                f"the host {error}", hint="Write a host such as example.com.", offset=start
            ) from None
        is_address = host.startswith("[") or _is_quad(host)
        if is_wild and (is_address or "." not in host):
            raise BadRule(
                "the wildcard covers a whole top level of names, or an address",
                hint="Name the domain beneath it, for example *.example.com.",
                offset=len(PREFIX),
            )
        return cls(host, is_wild)

    def matches(self, host: str) -> bool:
        """`host` is a result of `host_of`."""
        return host.endswith("." + self.host) if self.is_wild else host == self.host


def _refuse_extras(name: str, start: int) -> None:
    if "*" in name:
        raise BadRule(
            "a wildcard is only allowed at the start, before a dot",
            hint="Write *.example.com for all hosts beneath example.com. "
            "For any host at all, write WebFetch alone.",
            offset=start + name.index("*"),
        )
    odd = re.search(r"[/?#@\\\s]|:(?![^\[]*\])", name)
    if odd is not None:
        raise BadRule(
            "a domain has no scheme, port, path or user",
            hint="Write the host alone, for example example.com.",
            offset=start + odd.start(),
        )
