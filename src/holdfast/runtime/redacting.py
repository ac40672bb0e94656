"""Values of the vault never stand in the record, whoever wrote them into an action (SEC-2).

While the vault is open its values are found exactly, and those that were replaced by their digests.
What merely has the shape of a credential is taken out by the record itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.errors import VaultError
from holdfast.core.types import Json
from holdfast.runtime.lending import Lending

_SHORTEST = 6
"""Shorter ones stand in every text by chance."""


class Redactor:
    """A body of an event without them."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._seen: tuple[int, int] | None = None
        self._values: tuple[tuple[str, str], ...] = ()

    def __call__(self, body: Mapping[str, Json]) -> dict[str, Json]:
        vault = self._lending.opened
        if vault is None:
            return dict(body)
        try:
            seen = (id(vault), vault.generation)
            if seen != self._seen:
                self._values = _texts(vault.values())
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
        return value

    def _clean_all(self, told: Mapping[str, Json]) -> dict[str, Json]:
        """Of keys below the first level anybody may have chosen some, as of a tool's arguments."""
        cleaned: dict[str, Json] = {}
        for key, value in told.items():
            name = self._text(key)
            # Two that hold secrets can look the same by now; none of them is lost.
            while name in cleaned or (name != key and name in told):
                name += "'"
            cleaned[name] = self._clean(value)
        return cleaned

    def _text(self, text: str) -> str:
        for name, value in self._values:
            if value in text:
                text = text.replace(value, f"[secret {name}]")
        if len(text) < _SHORTEST:
            return text
        try:
            old = self._lending.vault.contains_old(text.encode("utf-8", "surrogateescape"))
        except VaultError:
            old = ()
        return f"[left out: holds an old value of {', '.join(old)}]" if old else text


def _texts(values: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """The longest first: one value may be part of another."""
    found = [
        (name, value.decode("utf-8", "surrogateescape"))
        for name, value in values.items()
        if len(value) >= _SHORTEST
    ]
    return tuple(sorted(found, key=lambda each: -len(each[1])))
