"""The allowlist: hosts, ports, methods and paths (NET-2). Pure.

[METHOD[,METHOD…] ]host[:port[,port…]][/path/prefix]

api.example.com                      ports 80 and 443, any request
*.example.com:443                    any name below example.com, not example.com itself
GET,HEAD api.example.com:443/v1      /v1 and paths below it, not /v1x
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.hostnames import host_name, host_of, is_below, is_public_suffix

_DEFAULT_PORTS = frozenset({80, 443})
_MAX_RULE = 2048
_HINT = (
    "Write it as in api.example.com, *.example.com:443 or GET,POST api.example.com:443/v1 "
    "(methods in capitals, no scheme, no query)."
)
_METHOD = re.compile(r"[A-Z]{1,16}(?:-[A-Z]{1,16})?")
_NO_METHODS = frozenset({"CONNECT", "TRACE"})
"""CONNECT addresses the proxy itself, and TRACE would return injected headers."""
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)

_RAW_PATH = re.compile(r"/[!-~]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")


@dataclass(frozen=True, slots=True)
class AllowRule:
    """A set of requests. `host` is canonical, without `*.` and brackets."""

    host: str
    is_wildcard: bool
    ports: frozenset[int]
    """Empty, in a header rule only: any."""
    methods: frozenset[str]
    """Empty: any."""
    path: str
    """`/` is any path."""
    text: str
    """As written."""

    @property
    def is_bounded(self) -> bool:
        """Whether the rule needs inspection of requests."""
        return bool(self.methods) or self.path != "/"

    def allows(self, method: str, path: str | None) -> bool:
        """Whether a request is allowed; `path` from `normal_path`, None if ambiguous."""
        if self.methods and method not in self.methods:
            return False
        if self.path == "/":
            return True
        return path is not None and is_at_or_below(path, self.path)


class Allowlist:
    """Rules indexed by the labels of a name: the cost does not depend on their number."""

    __slots__ = ("_below", "_exact", "_names", "ports", "rules")

    def __init__(self, rules: Iterable[AllowRule]) -> None:
        self.rules = tuple(rules)
        self.ports: frozenset[int] = frozenset().union(*(rule.ports for rule in self.rules))
        exact: defaultdict[tuple[str, int], list[AllowRule]] = defaultdict(list)
        below: defaultdict[tuple[str, int], list[AllowRule]] = defaultdict(list)
        for rule in self.rules:
            for port in rule.ports:
                (below if rule.is_wildcard else exact)[rule.host, port].append(rule)
        self._exact = {key: tuple(matching) for key, matching in exact.items()}
        self._below = {key: tuple(matching) for key, matching in below.items()}
        self._names = frozenset((rule.host, rule.is_wildcard) for rule in self.rules)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Allowlist:
        return cls(parse_rule(text) for text in texts)

    def reach(self, host: str, port: int) -> tuple[AllowRule, ...]:
        """All rules for a host and port; empty: refused. `host` as `str(host_of(…))`."""
        rules = self._exact.get((_bare(host), port), ())
        for above in _above(host):
            if (above, port) in self._below and is_below(host, above):
                rules += self._below[above, port]
        return rules

    def knows(self, host: str) -> bool:
        """Whether a rule covers the host on any port: such names resolve in the cell's DNS."""
        return self.names_exactly(host) or any(
            (above, True) in self._names and is_below(host, above) for above in _above(host)
        )

    def names_exactly(self, host: str) -> bool:
        """Whether a rule spells out the host, on any port."""
        return (_bare(host), False) in self._names

    def allows(self, host: str, port: int, method: str, path: str) -> AllowRule | None:
        """The first rule that allows a request; `path` as sent, with or without query."""
        rules = self.reach(host, port)
        normal = normal_path(path.partition("?")[0]) if rules else None
        return next((rule for rule in rules if rule.allows(method, normal)), None)

    def must_intercept(self, host: str, port: int) -> bool:
        """Whether TLS must be intercepted: all rules for it restrict method or path (NET-6)."""
        rules = self.reach(host, port)
        return bool(rules) and all(rule.is_bounded for rule in rules)


def parse_rule(text: str, *, default_ports: frozenset[int] = _DEFAULT_PORTS) -> AllowRule:
    """Parse a rule; `BadInput` with the reason otherwise."""
    if len(text) > _MAX_RULE:
        raise _bad("", f"is longer than {_MAX_RULE} characters")
    methods, rest = _methods(text)
    if "://" in rest:
        raise _bad(text, "has a scheme; ports select the protocol")
    authority, slash, path = rest.partition("/")
    for char, name in (("@", "a user"), ("?", "a query"), ("#", "a fragment")):
        if char in rest:
            raise _bad(text, f"has {name}")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _bad(text, "has no host that can be separated from its port; IPv6 needs brackets")
    host_text, ports = match.groups()
    host, is_wildcard = _host(text, host_text)
    return AllowRule(
        host=host,
        is_wildcard=is_wildcard,
        ports=default_ports if ports is None else _ports(text, ports),
        methods=methods,
        path=_path(text, slash + path),
        text=text,
    )


def normal_path(raw: str) -> str | None:
    """The canonical path, or None if servers could interpret it differently.

    Escapes of unreserved characters are decoded once. Ambiguous are dots, empty segments, escaped
    separators and controls, double escapes, invalid UTF-8 (`%c0%ae`), and characters that
    normalise into any of these.
    """
    if _RAW_PATH.fullmatch(raw) is None or "\\" in raw or "?" in raw or "#" in raw:
        return None
    if "%" in raw:
        if not _is_plain(raw):
            return None
        raw = _ESCAPE.sub(_decode_escape, raw)
    *segments, last = raw.split("/")[1:]
    if any(_is_odd(segment) for segment in segments) or (last and _is_odd(last)):
        return None
    return raw


def is_at_or_below(path: str, prefix: str) -> bool:
    """Whether a path from `normal_path` is the prefix or below it."""
    return path == prefix or path.startswith(prefix.removesuffix("/") + "/")


def _decode_escape(match: re.Match[str]) -> str:
    char = chr(int(match[1], 16))
    return char if _UNRESERVED.fullmatch(char) else match[0].upper()


def _is_plain(raw: str) -> bool:
    """Whether escapes stay inside their segment, however often they are decoded."""
    if "%" in _ESCAPE.sub("", raw):
        return False
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return False
    if _ESCAPE.search(text) or any(unicodedata.category(char)[0] == "C" for char in text):
        return False
    folded = unicodedata.normalize("NFKC", text)
    if "\\" in folded or text.count("/") != raw.count("/"):
        return False
    return all(folded.count(sign) == text.count(sign) for sign in "/.;%")


def _is_odd(segment: str) -> bool:
    """Empty, or only dots and blanks; some servers ignore text from `;` on (`/..;/`)."""
    plain = segment.replace("%3B", ";").replace("%20", " ").partition(";")[0]
    return not plain.strip(". ")


def _bare(host: str) -> str:
    """IPv6 without brackets, as in rules."""
    return host[1:-1] if ":" in host and host.startswith("[") and host.endswith("]") else host


def _above(host: str) -> Iterator[str]:
    """`a.b.example.com`: `b.example.com`, `example.com`, `com`."""
    _, dot, rest = host.partition(".")
    while dot:
        yield rest
        _, dot, rest = rest.partition(".")


def _methods(text: str) -> tuple[frozenset[str], str]:
    head, space, rest = text.partition(" ")
    if not space:
        return frozenset(), text
    methods = head.split(",")
    for method in methods:
        if _METHOD.fullmatch(method) is None:
            raise _bad(text, "has text before a space that is not a method")
        if method in _NO_METHODS:
            raise _bad(text, f"allows {method}, which is never allowed")
    return frozenset(methods), rest


def _host(text: str, host_text: str) -> tuple[str, bool]:
    is_wildcard = host_text.startswith("*.")
    name = host_text.removeprefix("*.")
    if name == "*":
        raise _bad(text, "allows every host: name a domain behind the *")
    if "*" in name:
        raise _bad(text, "has a misplaced *: only the first of several labels may be *")
    try:
        host = host_name(name) if is_wildcard else str(host_of(name))
    except EgressRefused as error:
        raise _bad(text, f"names no host: {error.message}") from None
    if is_wildcard and is_public_suffix(host):
        raise _bad(text, "allows every name below a public suffix")
    return host, is_wildcard


def _ports(text: str, ports_text: str) -> frozenset[int]:
    ports = ports_text.split(",")
    if any(_PORT.fullmatch(port) is None or int(port) > 65535 for port in ports):
        raise _bad(text, "has a port outside 1 to 65535")
    return frozenset(map(int, ports))


def _path(text: str, path_text: str) -> str:
    if not path_text:
        return "/"
    if "*" in path_text:
        raise _bad(text, "has a * in its path; a path is always a prefix")
    path = normal_path(path_text)
    if path is None:
        raise _bad(text, "has an ambiguous path")
    return path


def _bad(text: str, why: str) -> BadInput:
    subject = f"{text[:80]!r} " if text else "a rule "
    return BadInput(f"{subject}{why}", hint=_HINT, code="CW-BAD-DOMAIN")
