"""Injects the values of leased secrets into the bound fields of a request head (SEC-3, SEC-5).

(1) find placeholders in the head           (3) put the value into the bound field only
(2) select the bindings that match          (4) report the placeholders that stayed

A placeholder that stays is harmless: it does not depend on the value. So a placeholder outside of a
bound field stays, and only a value is refused that would break the head, or that could not be
recognised in a response.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import AnyStr
from urllib.parse import quote_from_bytes, unquote_to_bytes

from cellwall.core.errors import EgressRefused
from cellwall.core.network import Binding, SecretUse
from cellwall.egress.destinations.allowlist import is_at_or_below, normal_path
from cellwall.egress.destinations.hostnames import is_host_in
from cellwall.egress.inspection.body_filters import SentValue
from cellwall.egress.protocols.http1_framing import Fields, Headers
from cellwall.parsing.credentials.known_forms import MIN_BYTES

_PLAIN_PORT = 80
_HEADER_MAX_BYTES = 16 * 1024
"""A repeated placeholder in one header would make a small request a large one."""
_BEFORE_BYTES = 32
"""Before a placeholder in its field: a scheme, a name. With more, code could choose how much of the
value a server returns that echoes the beginning of a field; a partial value is not recognised."""
_FRAMING = frozenset(
    b"host content-length transfer-encoding connection te trailer upgrade expect".split()
)
"""Headers of routing and framing; no secret is injected there, bound or not."""
_NOT_IN_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class OutgoingHead:
    """The head of a request as it is sent, with injected values; `repr` shows none of them."""

    path: str = field(repr=False)
    headers: Fields = field(repr=False)
    used: tuple[str, ...] = ()
    """Names of injected secrets."""
    stayed: tuple[str, ...] = ()
    """Names of secrets whose placeholder is still in the head."""
    sent_values: tuple[SentValue, ...] = field(default=(), repr=False)
    """The injected values; a rotation before the response does not change them."""


def inject_secrets(
    headers: Headers,
    uses: Sequence[SecretUse],
    *,
    host: str,
    port: int,
    method: str,
    path: str,
    is_tls: bool,
) -> OutgoingHead:
    """Inject values into a head. `path` is the raw path with query.

    Without `is_tls` values are sent to port 80 only, if that is bound. Raises `EgressRefused` for
    a value that does not fit its field, `VaultError` when the lease has ended.
    """
    head = _HeadEditor(path, list(headers))
    sent = []
    for use in uses:
        # (1)
        if not head.holds(use.placeholder):
            continue
        # (2)
        matching = [
            binding
            for binding in use.bindings
            if _is_met(binding, host=host, port=port, method=method, path=path, is_tls=is_tls)
        ]
        # (3)
        value = _Value(use)
        puts = [head.put(value, binding) for binding in matching]
        if any(puts):
            sent.append(value.sent_value)
    # (4)
    used = tuple(each.name for each in sent)
    stayed = tuple(use.name for use in uses if head.holds(use.placeholder))
    return OutgoingHead(head.path, head.headers, used, stayed, tuple(sent))


def _is_met(
    binding: Binding, *, host: str, port: int, method: str, path: str, is_tls: bool
) -> bool:
    if port not in binding.ports or not (is_tls or port == _PLAIN_PORT):
        return False
    if binding.methods and method not in binding.methods:
        return False
    if not is_host_in(host, binding.host):
        return False
    prefix = binding.path.rstrip("/")
    if not prefix:
        return True
    # An ambiguous path (`/v1/..%2fadmin`) matches no binding.
    normal = normal_path(path.partition("?")[0])
    return normal is not None and is_at_or_below(normal, prefix)


class _Value:
    """One secret in one request; revealed lazily and once, so that all uses are the same value."""

    def __init__(self, use: SecretUse) -> None:
        self._use = use
        self.mark = use.placeholder.encode()

    @cached_property
    def value(self) -> bytes:
        value = self._use.reveal()
        if len(value) < MIN_BYTES:
            # A short value cannot be recognised in a response, and would be returned to the code.
            raise self.unfit(f"is shorter than {MIN_BYTES} bytes")
        return value

    @property
    def sent_value(self) -> SentValue:
        return SentValue(name=self._use.name, placeholder=self._use.placeholder, value=self.value)

    def line(self) -> bytes:
        if _NOT_IN_HEADER.search(self.value):
            # A line break in a value would add headers and requests.
            raise self.unfit("has a line end or another control character")
        return self.value

    def line_without_colon(self) -> bytes:
        if b":" in self.value:
            raise self.unfit("has a colon, which ends the name in basic authentication")
        return self.line()

    def unfit(self, why: str) -> EgressRefused:
        return EgressRefused(
            f"the value of the secret {self._use.name} does not fit its binding: it {why}",
            hint="Set the secret again with a value that fits, or bind it elsewhere.",
            code="CW-SECRET-UNFIT",
        )


class _HeadEditor:
    def __init__(self, path: str, headers: Fields) -> None:
        self.path = path
        self.headers = headers

    def holds(self, placeholder: str) -> bool:
        if placeholder in self.path:
            return True
        wanted = placeholder.encode()
        return any(
            wanted in name or wanted in value or wanted in (_basic(name, value) or b"")
            for name, value in self.headers
        )

    def put(self, secret: _Value, binding: Binding) -> bool:
        """Inject into one binding's field; whether it happened at least once."""
        match binding.place:
            case "header":
                return self._put_header(secret, binding.name.lower().encode())
            case "query":
                return self._put_query(secret, binding.name.encode())
            case "basic":
                return self._put_basic(secret, binding.name)

    def _put_header(self, secret: _Value, bound: bytes) -> bool:
        if bound in _FRAMING:
            return False
        was_put = False
        wanted = secret.mark
        for place, (name, value) in enumerate(self.headers):
            if name.lower() == bound and _is_near(wanted, value):
                filled = _fitting(value.replace(wanted, secret.line()), secret)
                if filled != filled.strip(b" \t"):
                    raise secret.unfit("leaves a blank at the end of the header")
                self.headers[place] = (name, filled)
                was_put = True
        return was_put

    def _put_query(self, secret: _Value, bound: bytes) -> bool:
        before, mark, query = self.path.partition("?")
        fields = query.split("&") if mark else []
        wanted = secret.mark.decode()
        was_put = False
        for place, text in enumerate(fields):
            name, equals, value = text.partition("=")
            # `+` is a blank in a query field name as `%20` is.
            is_bound = unquote_to_bytes(name.replace("+", " ")) == bound
            if equals and is_bound and _is_near(wanted, value):
                filled = value.replace(wanted, quote_from_bytes(secret.value, safe=""))
                fields[place] = f"{name}={_fitting(filled.encode(), secret).decode()}"
                was_put = True
        if was_put:
            self.path = f"{before}?{'&'.join(fields)}"
        return was_put

    def _put_basic(self, secret: _Value, part: str) -> bool:
        was_put = False
        wanted = secret.mark
        for place, (name, value) in enumerate(self.headers):
            user, colon, password = (_basic(name, value) or b"").partition(b":")
            if not colon:
                continue
            if part == "username" and _is_near(wanted, user):
                user = user.replace(wanted, secret.line_without_colon())
            elif part == "password" and _is_near(wanted, password):
                password = password.replace(wanted, secret.line())
            else:
                continue
            credentials = _fitting(user + colon + password, secret)
            self.headers[place] = (name, b"Basic " + base64.b64encode(credentials))
            was_put = True
        return was_put


def _basic(name: bytes, value: bytes) -> bytes | None:
    """The decoded credentials of HTTP basic authentication, or None."""
    scheme, _, encoded = value.strip().partition(b" ")
    if name.lower() != b"authorization" or scheme.lower() != b"basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_near(wanted: AnyStr, text: AnyStr) -> bool:
    """Whether the placeholder is in a field, once, near its beginning."""
    before, mark, after = text.partition(wanted)
    return bool(mark) and len(before) <= _BEFORE_BYTES and wanted not in after


def _fitting(value: bytes, secret: _Value) -> bytes:
    if len(value) > _HEADER_MAX_BYTES:
        raise secret.unfit("makes the field longer than is allowed")
    return value
