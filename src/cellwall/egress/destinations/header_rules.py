"""Rules for request headers: required, forbidden, listed or set (NET-2). Pure.

TARGET VERB HEADER, where TARGET is written as in an allowlist; without a port: every port

api.example.com forbid x-admin x-internal-*     none of these
api.example.com require x-api-version: 2        this one, once, with this value (* in it: any text)
POST api.example.com/v1 only x-request-id       these, and those that every client sends
login.example.com set x-tenant: example.org     in place of the value that the code has sent

Rules restrict allowed requests, they allow nothing: all rules that apply must hold.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from urllib.parse import unquote

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations.allowlist import AllowRule, parse_rule
from cellwall.egress.destinations.hostnames import is_below
from cellwall.egress.protocols.http1_framing import Fields, Headers, fold_name

_MAX_RULE = 2048
_VERB = re.compile(r"(.*?) (forbid|require|only|set) (.+)", re.DOTALL)
_NAME = re.compile(r"[!#$%&'+.^_`|~0-9a-z-]+")
_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_HINT = (
    "Write it as in `api.example.com forbid x-admin`, `api.example.com require x-version: 2`, "
    "`api.example.com only x-request-id` or `api.example.com set x-tenant: example.org`."
)
_STANDARD = frozenset(
    b"host user-agent accept accept-encoding accept-language accept-charset cache-control pragma "
    b"connection keep-alive te trailer transfer-encoding content-length content-type "
    b"content-encoding content-language content-md5 content-range content-disposition date dnt "
    b"digest expect from if-match if-none-match if-modified-since if-unmodified-since if-range "
    b"max-forwards origin priority range referer upgrade upgrade-insecure-requests via "
    b"sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user sec-websocket-key "
    b"sec-websocket-version sec-websocket-extensions sec-websocket-protocol "
    b"proxy-connection".split()
)
"""Headers that `only` need not list. Not those of authentication: authorization, cookie."""
_NOT_OURS = frozenset(
    b"host connection keep-alive te trailer transfer-encoding content-length content-encoding "
    b"expect upgrade proxy-connection proxy-authorization http2-settings".split()
)
"""Headers of routing, framing and encoding, which no rule may set."""
_HOP_BY_HOP = frozenset(
    b"connection keep-alive te trailer upgrade expect transfer-encoding http2-settings".split()
)
"""Hop-by-hop: the proxy writes its own for the server."""


class Verb(StrEnum):
    """The effect of a rule."""

    FORBID = "forbid"
    REQUIRE = "require"
    ONLY = "only"
    SET = "set"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """One rule. Names are in lower case, and compared as servers behind CGI read them."""

    scope: AllowRule
    verb: Verb
    names: tuple[str, ...]
    """With `*` for any text; a single name without `*` for `require` and `set`."""
    value: str | None
    text: str
    """As written."""

    def reaches(self, host: str, port: int) -> bool:
        """Whether the rule can apply to requests to that host and port."""
        scope = self.scope
        if scope.ports and port not in scope.ports:
            return False
        return is_below(host, scope.host) if scope.is_wildcard else host == scope.host

    def may_meet(self, rule: AllowRule) -> bool:
        """Whether this rule and an allowlist rule may share a host; true if in doubt."""
        own, other = self.scope.host, rule.host
        return (
            own == other
            or (rule.is_wildcard and is_below(own, other))
            or (self.scope.is_wildcard and is_below(other, own))
        )

    def concerns(self, methods: Iterable[str], path: str | None) -> bool:
        """Whether the rule applies to a request; `path` from `normal_path`.

        Also to requests that a lenient server may read as such: some servers ignore case, text
        after `;`, or a trailing dot.
        """
        scope = self.scope
        if scope.methods and not any(
            _METHOD.fullmatch(method) is None or method.upper() in scope.methods
            for method in methods
        ):
            return False
        if path is None:
            return True
        own = _loose(scope.path)
        return _loose(path)[: len(own)] == own

    def check(self, headers: Headers) -> None:
        """Refuse headers, as the cell has sent them, that violate the rule."""
        match self.verb:
            case Verb.FORBID:
                if any(self._names(name) for name, _ in headers):
                    raise self._refused("has a header that a rule forbids")
            case Verb.REQUIRE:
                self._check_required(headers)
            case Verb.ONLY:
                for name, _ in headers:
                    if fold_name(name.lower()) not in _STANDARD and not self._names(name):
                        raise self._refused("has a header that a rule does not list")
            case Verb.SET:
                pass

    def check_leaving(self, headers: Headers) -> None:
        """Refuse outgoing headers that lack a required one.

        Forbidden headers were checked before hop-by-hop headers were removed.
        """
        if self.verb is Verb.REQUIRE:
            self._check_required(headers)

    def put(self, headers: Fields) -> Fields:
        """The headers with the one that the rule sets, if any."""
        if self.verb is not Verb.SET or self.value is None:
            return headers
        others = [pair for pair in headers if not self._names(pair[0])]
        return [*others, (self.names[0].encode(), self.value.encode())]

    def _check_required(self, headers: Headers) -> None:
        matching = [pair for pair in headers if self._names(pair[0])]
        # Of two headers, or of two spellings, a server may use the unchecked one.
        if len(matching) != 1 or matching[0][0].lower() != self.names[0].encode():
            raise self._refused("lacks a header that a rule requires, or has it more than once")
        value = matching[0][1].decode("latin-1")
        if self.value is not None and not _is_like(value, self.value):
            raise self._refused("has a header value that a rule does not accept")

    def _names(self, name: bytes) -> bool:
        folded = fold_name(name.lower()).decode("latin-1")
        return any(_is_like(folded, _folded(own)) for own in self.names)

    def _refused(self, why: str) -> EgressRefused:
        return EgressRefused(
            f"the request {why} ({', '.join(self.names)[:200]})",
            hint="Send the headers that [egress] header_rules ask for, and no others.",
            code="CW-HEADER-RULE",
        )


def parse_header_rule(text: str) -> HeaderRule:
    """Parse a rule; `BadInput` with the reason otherwise."""
    if len(text) > _MAX_RULE:
        raise _bad("", f"is longer than {_MAX_RULE} characters")
    match = _VERB.fullmatch(text)
    if match is None:
        raise _bad(text, "has none of the verbs forbid, require, only, set")
    try:
        scope = parse_rule(match[1], default_ports=frozenset())
    except BadInput as problem:
        raise _bad("", f"names no requests: {problem.message}") from None
    verb = Verb(match[2])
    if verb in (Verb.FORBID, Verb.ONLY):
        names, value = tuple(word.lower() for word in match[3].split(" ")), None
        _check_names(text, names, _PATTERN)
    else:
        names, value = _field(text, match[3])
        folded = fold_name(names[0].encode())
        if verb is Verb.SET and value is None:
            raise _bad(text, "sets a header without a value")
        if verb is Verb.SET and folded in _NOT_OURS:
            raise _bad(text, f"sets {names[0]}, which controls routing or framing")
        if verb is Verb.REQUIRE and (folded in _HOP_BY_HOP or folded.startswith(b"proxy-")):
            raise _bad(text, f"requires {names[0]}, which is not forwarded to servers")
    return HeaderRule(scope, verb, names, value, text)


def _field(text: str, field_text: str) -> tuple[tuple[str, ...], str | None]:
    name, colon, value = field_text.partition(":")
    names = (name.lower(),)
    _check_names(text, names, _NAME)
    value = value.strip(" ")
    if colon and _VALUE.fullmatch(value) is None:
        raise _bad(text, "has an invalid header value")
    return names, value if colon else None


def _check_names(text: str, names: tuple[str, ...], form: re.Pattern[str]) -> None:
    for name in names:
        if form.fullmatch(name) is None:
            raise _bad(text, "has an invalid header name")


def _loose(path: str) -> list[str]:
    """The segments of a path from `normal_path`, as the most lenient server reads them."""
    segments = []
    for segment in unquote(path).split("/"):
        text = unicodedata.normalize("NFKC", segment).partition(";")[0]
        # Again: case folding may change the composition.
        text = unicodedata.normalize("NFKC", text.casefold())
        segments.append(text.strip().rstrip(". ").strip())
    while segments and not segments[-1]:
        segments.pop()  # a trailing slash
    return segments


def _folded(name: str) -> str:
    return "*".join(fold_name(part.encode()).decode() for part in name.split("*"))


def _is_like(text: str, pattern: str) -> bool:
    # Only * is special: other fnmatch characters are literal.
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def _bad(text: str, why: str) -> BadInput:
    subject = f"{text[:80]!r} " if text else "a rule on headers "
    return BadInput(f"{subject}{why}", hint=_HINT, code="CW-BAD-HEADER-RULE")
