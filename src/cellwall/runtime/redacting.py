"""Values of the vault never stand in the record, whoever wrote them into an action (SEC-2).

While the vault is open its values are found however they are written, as the guard finds them, and
those that were replaced by their digests. What merely has the shape of a credential is taken out by
the record itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cellwall.core.errors import VaultError
from cellwall.core.types import Json
from cellwall.runtime.lending import Lending

if TYPE_CHECKING:
    from cellwall.guard.redact.known import KnownValues

_SHORTEST = 6
"""Shorter ones stand in every text by chance."""
_NUMBER_FROM, _NUMBER_UNTIL = 10**5, 10**1000
"""No shorter value is known; no longer number can be written down."""


class Redactor:
    """A body of an event without them."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._seen: tuple[int, int] | None = None
        self._known: KnownValues | None = None
        self._short: tuple[tuple[str, bytes], ...] = ()

    def __call__(self, body: Mapping[str, Json]) -> dict[str, Json]:
        vault = self._lending.opened
        if vault is None:
            return dict(body)
        try:
            seen = (id(vault), vault.generation)
            if seen != self._seen:
                # Most runs have no vault, and need not wait for this.
                from cellwall.guard.redact.known import KnownValues  # noqa: PLC0415
                from cellwall.parsing.credentials.known.encodings import MIN_BYTES  # noqa: PLC0415

                values = vault.values()
                self._known = KnownValues(values.items())
                self._short = tuple(
                    (name, value)
                    for name, value in values.items()
                    if _SHORTEST <= len(value) < MIN_BYTES
                )
                self._seen = seen
        except VaultError:
            pass  # broken meanwhile: what was known is still known
        # Its own keys are ours: a secret that is the word `status` must not take them away.
        return {key: self._clean(value) for key, value in body.items()}

    def _clean(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._clean_all(value)
        if isinstance(value, Sequence):
            return [self._clean(each) for each in value]
        if isinstance(value, int) and _NUMBER_FROM <= abs(value) < _NUMBER_UNTIL:
            # A card or an account that is kept as a text may stand here as a number.
            text = str(value)
            shown = self._text(text)
            return value if shown == text else shown
        return value

    def _clean_all(self, told: Mapping[str, Json]) -> dict[str, Json]:
        """Of keys below the first level anybody may have chosen some, as of a tool's arguments."""
        cleaned: dict[str, Json] = {}
        times: dict[str, int] = {}
        for key, value in told.items():
            clean = name = self._text(key)
            # Two that hold secrets can look the same by now; none of them is lost.
            while name in cleaned or (name != key and name in told):
                times[clean] = times.get(clean, 1) + 1
                name = f"{clean} ({times[clean]})"
            cleaned[name] = self._clean(value)
        return cleaned

    def _text(self, text: str) -> str:
        if len(text) < _SHORTEST:
            return text
        try:
            data, handler = text.encode("utf-8", "surrogateescape"), "surrogateescape"
        except UnicodeEncodeError:  # half a character, which no bytes stand for
            data, handler = text.encode("utf-8", "surrogatepass"), "surrogatepass"
        cleaned = self._without_known(data)
        try:
            old = self._lending.vault.contains_old(cleaned)
        except VaultError:
            old = ()
        if old:
            return f"[left out: holds an old value of {', '.join(old)}]"
        if cleaned == data:
            return text
        try:
            return cleaned.decode("utf-8", handler)
        except UnicodeDecodeError:  # a value of no text was cut out of the middle of a character
            return cleaned.decode("utf-8", "replace")

    def _without_known(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        done = 0
        for span in self._known.find(data, 0, is_final=True)[0] if self._known else ():
            parts += data[done : span.start], b"[%s]" % span.rule.encode()
            done = span.end
        data = b"".join([*parts, data[done:]])
        # The guard looks for these as words alone; the record can do without them anywhere.
        for name, value in self._short:
            data = data.replace(value, b"[secret %s]" % name.encode())
        return data
