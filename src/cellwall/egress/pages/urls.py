"""Canonical URLs for fetch, or a refusal (NET-3). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urljoin

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.hostnames import host_of

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
    found = _URL.fullmatch(text)
    if found is None:
        raise bad_url("it does not start with http:// or https:// and a host")
    scheme: Literal["http", "https"] = "https" if found[1].lower() == "https" else "http"
    host, port = _authority(found[2], _PORTS[scheme])
    target = _NOT_ASCII.sub(lambda part: quote(part[0]), (found[3] or "/") + (found[4] or ""))
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
    found = _AUTHORITY.fullmatch(text)
    port = int(found[2] or default_port) if found is not None else 0
    if found is None or port > 0xFFFF:
        raise bad_url("its host is not written as `host` or `host:port`")
    return str(host_of(found[1])), port
