"""Grants and leases: where a secret may be sent, and its use by one action or session (SEC-3).

Each grant names a place on the wire and may bound the rest; a secret without a grant cannot be
used. The code holds a placeholder, never the value. `reveal` asks the vault each time, so a lease
ends at once with the action, the session, a revoked or expired grant, a removed secret, or when the
vault is locked.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from cellwall.core.ids import check_id
from cellwall.core.network import Binding, SecretUse
from cellwall.core.types import Json
from cellwall.secrets import failures
from cellwall.secrets.failures import bad_input

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_GRANTS = 64
TOOLS = ("run", "code", "proxy", "sandbox", "account", "alerts")
"""The tools that can hold a lease: a fetch carries no secret, and a host's own tool runs
outside. `alerts` are messages to receivers that the administrator has configured."""
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
_MAX_HOST = 253
_METHOD = re.compile(r"[A-Z]{1,16}(?:-[A-Z]{1,16})?")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,1023}")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_FIELD = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_MAX_EACH = 16
_MAX_PATH = 4095
# These headers route or frame a message: a secret there enables request smuggling.
_FRAMING = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te"),
        *("trailer", "expect", "keep-alive", "proxy-authorization", "proxy-connection"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One permitted use of a secret."""

    id: str
    binding: Binding
    tools: tuple[str, ...] = ()
    """A subset of TOOLS. Empty: any."""
    session: str = ""
    """Only for this session. Empty: any."""
    until_s: float | None = None
    """In seconds since 1970. None: until revoked."""
    made_s: float = 0.0

    def permits(self, *, tool: str, session: str, now_s: float) -> bool:
        return (
            (not self.tools or tool in self.tools)
            and self.session in ("", session)
            and (self.until_s is None or now_s < self.until_s)
        )

    def to_json(self) -> dict[str, Json]:
        """As stored in the vault and as shown to programs."""
        binding = self.binding
        return {
            "id": self.id,
            "host": binding.host,
            "ports": list(binding.ports),
            "methods": list(binding.methods),
            "path": binding.path,
            "place": binding.place,
            "name": binding.name,
            "tools": list(self.tools),
            "session": self.session,
            "until_s": self.until_s,
            "made_s": self.made_s,
        }


def check_secret_name(name: str) -> str:
    """Returns the name. The error does not repeat it: a value may have been passed by mistake."""
    if SECRET_NAME.fullmatch(name) is None:
        raise bad_input(
            "a secret's name has letters, digits and underscores, begins with no digit, and is at "
            "most 64 characters long",
            hint="Name it as its variable, such as GITHUB_TOKEN. A value never stands on the "
            "command line: give it on standard input.",
            code="CW-VAULT-NAME",
        )
    return name


def check_project(path: str | None) -> None:
    """Raises `BadInput` for a path that is not canonical; None and the empty path name no project.

    Not the root folder: every project would be in it.
    """
    if not path:
        return
    is_plain = os.path.normpath(path) == path and path.isprintable() and len(path) <= _MAX_PATH
    if not path.startswith("/") or path.startswith("//") or path == "/" or not is_plain:
        raise bad_input(
            "a project is a folder other than /, by its absolute path in printable characters",
            hint="Name the folder that sandboxes get with --workspace.",
            code="CW-VAULT-PROJECT",
        )


def is_in_project(path: str, project: str) -> bool:
    """Whether a canonical path lies in the folder of the project, or there is no project."""
    return not project or path == project or path.startswith(f"{project}/")


def check_grant(grant: Grant) -> Grant:
    """Returns the grant if it states unambiguously where a value may go."""
    check_binding(grant.binding)
    for tool in _check_count(grant.tools, "tools"):
        if tool not in TOOLS:
            raise bad_input(
                "a secret is never lent to this tool",
                hint=f"One of: {', '.join(TOOLS)}; sandbox is any use in a live sandbox. A fetch "
                "carries no secret: have code make the request.",
                code="CW-VAULT-GRANT",
            )
    if grant.session:
        check_id(grant.session, what="session id")
    if grant.until_s is not None and not 0 < grant.until_s < 1 << 40:
        raise _bad_grant("the end of a grant is not a valid time")
    return grant


def check_binding(binding: Binding) -> None:
    """Raises `BadInput` for a binding that is ambiguous or enables smuggling."""
    _check_host(binding.host)
    ports = _check_count(binding.ports, "ports")
    if not ports or any(type(port) is not int or not 0 < port < 65_536 for port in ports):
        raise _bad_grant("a port is a number from 1 to 65535, and there is at least one")
    for method in _check_count(binding.methods, "methods"):
        if _METHOD.fullmatch(method) is None or method in {"CONNECT", "TRACE"}:
            raise _bad_grant("a method is in capitals, such as GET; CONNECT and TRACE are refused")
    inner = binding.path.split("/")[1:-1]
    odd = {"", ".", ".."} & set(inner) or {".", ".."} & {binding.path.rpartition("/")[2]}
    if odd or _PATH.fullmatch(binding.path) is None:
        raise _bad_grant("a path begins with / and has no escapes, dots, query or fragment")
    _check_place(binding)


def _check_host(host: str) -> None:
    if len(host) > _MAX_HOST or _HOST.fullmatch(host) is None:
        raise _bad_grant("a host is a name in lower case, such as api.example.com or *.example.com")
    bare = host.removeprefix("*.")
    is_numeric = bare.rpartition(".")[2].isdigit()
    if host != bare and ("." not in bare or is_numeric):
        raise _bad_grant("a wildcard must precede a full domain, such as *.example.com")
    if is_numeric:
        try:
            ipaddress.IPv4Address(bare)
        except ValueError:
            raise _bad_grant("a host that ends in a number is a whole IPv4 address") from None


def _check_place(binding: Binding) -> None:
    name = binding.name
    match binding.place:
        case "header":
            if _HEADER.fullmatch(name) is None or name in _FRAMING:
                raise _bad_grant("a header name is in lower case and must not be a framing header")
        case "query":
            if _FIELD.fullmatch(name) is None:
                raise _bad_grant("a query's field has letters, digits and . _ ~ - in its name")
        case "basic":
            if name not in ("username", "password"):
                raise _bad_grant("basic authentication takes the name `username` or `password`")
        case _:
            raise _bad_grant("a secret goes into a header, a query or basic authentication")


def _check_count(words: Sequence[Any], what: str) -> Sequence[Any]:
    if len(words) > _MAX_EACH:
        raise _bad_grant(f"a grant names at most {_MAX_EACH} {what}")
    return words


def _bad_grant(message: str) -> Exception:
    return bad_input(message, hint="See `cellwall vault grant --help`.", code="CW-VAULT-GRANT")


def parse_grant(fields: Mapping[str, Any]) -> Grant:
    """The inverse of `to_json`, for data that our MAC authenticates."""
    return Grant(
        id=fields["id"],
        binding=Binding(
            host=fields["host"],
            ports=tuple(fields["ports"]),
            methods=tuple(fields["methods"]),
            path=fields["path"],
            place=fields["place"],
            name=fields["name"],
        ),
        tools=tuple(fields["tools"]),
        session=fields["session"],
        until_s=fields["until_s"],
        made_s=fields["made_s"],
    )


PLACEHOLDER_PREFIX = "hfsecret_"
_RANDOM_BYTES = 17  # 26 characters of base32 and a remainder that is cut off
_RANDOM_CHARACTERS = 26


ValueSource = Callable[[str, frozenset[str]], bytes]
"""The current value of a secret, if the secret and all of these grants still exist."""


def new_placeholder(name: str) -> str:
    """The text that code sees instead of a value: 130 random bits, so none occurs by chance."""
    word = base64.b32encode(os.urandom(_RANDOM_BYTES)).decode()[:_RANDOM_CHARACTERS].lower()
    return f"{PLACEHOLDER_PREFIX}{name.lower()}_{word}"


class Lease:
    """Secrets leased together. A lease ends once, and for good."""

    def __init__(
        self,
        source: ValueSource,
        granted: Mapping[str, Sequence[Grant]],
        *,
        session: str,
        clock: Callable[[], float],
    ) -> None:
        self.session = session
        self.revealed: Counter[str] = Counter()
        """How often each value was handed to the egress proxy, to put it into a request or to
        find it in a response. The connection's record names the request."""
        self.granted = granted
        self._source = source
        self._clock = clock
        self._is_over = False
        # The lease ends with its first expiring grant: the bindings were handed out together.
        ends = [grant.until_s for each in granted.values() for grant in each if grant.until_s]
        self._until_s = min(ends, default=None)
        self.uses = tuple(
            SecretUse(
                name=name,
                placeholder=new_placeholder(name),
                bindings=tuple(grant.binding for grant in grants),
                reveal=partial(self._reveal, name, frozenset(grant.id for grant in grants)),
            )
            for name, grants in granted.items()
        )

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(use.name for use in self.uses)

    @property
    def is_over(self) -> bool:
        has_run_out = self._until_s is not None and self._clock() >= self._until_s
        return self._is_over or has_run_out

    def end(self) -> None:
        self._is_over = True

    def _reveal(self, name: str, grants: frozenset[str]) -> bytes:
        if self.is_over:
            raise failures.lease_ended(name)
        value = self._source(name, grants)
        self.revealed[name] += 1
        return value
