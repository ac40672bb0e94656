"""What must not leave beside secrets: personal data, by setting, and registered texts (NET-5).

The same checks for what goes out through egress and for what is shown of a result.
"""

# ruff: noqa: PLC0415  # late imports: the finders load with the first text that needs them

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cellwall.config.models import Settings
from cellwall.core.network import ContentCheck, ContentStream
from cellwall.runtime.state_lists import ABSENT, Stamp, StateList

if TYPE_CHECKING:
    from cellwall.parsing.canaries.canary_set import Canary, CanarySet

_OVERLAP_BYTES = 320
"""Longer than an address or number: what is split between two pieces is found."""
_ADDRESSES = frozenset({"ip", "mac"})
"""Addresses of machines; nearly every protocol sends some."""


def content_checks(settings: Settings, canaries: CanaryList) -> tuple[ContentCheck, ...]:
    """The checks of egress as configured."""
    personal = (PersonalDataCheck(),) if settings.egress.personal_data == "deny" else ()
    return (*personal, CanaryCheck(canaries))


@dataclass(frozen=True, slots=True)
class PersonalDataCheck:
    """Implements `ContentCheck` with the finders of the guard (GRD-6)."""

    kind: Literal["personal"] = "personal"
    is_active: bool = True

    def stream(self) -> ContentStream:
        return _PersonalDataStream()


class _PersonalDataStream:
    def __init__(self) -> None:
        self._tail = b""
        self._found: str | None = None

    def feed(self, data: bytes) -> str | None:
        if self._found is None and data:
            from cellwall.guard.pii import find

            window = self._tail + data
            self._tail = window[-_OVERLAP_BYTES:]
            hits = find(window.decode("utf-8", "replace"))
            kinds = [hit.kind for hit in hits if hit.kind not in _ADDRESSES]
            self._found = kinds[0] if kinds else None
        return self._found


class CanaryList:
    """The registered texts of one state folder; read again after a change."""

    def __init__(self, home: str) -> None:
        self.stored = StateList(home, "canaries", "CW-CANARIES")
        self._stamp = ABSENT
        self._set: CanarySet | None = None

    def current(self) -> CanarySet | None:
        """All registered texts; None if there are none. A broken list is an error: nothing may
        leave unseen."""
        stamp: Stamp = self.stored.stamp()
        if stamp != self._stamp:
            from cellwall.parsing.canaries.canary_set import CanarySet

            self._set = CanarySet(self.all()) or None
            self._stamp = stamp
        return self._set

    def all(self) -> Sequence[Canary]:
        """Each registered text."""
        return [self._decode(each) for each in self.stored.read()]

    def _decode(self, fields: dict[str, Any]) -> Canary:
        from cellwall.parsing.canaries.canary_set import Canary

        try:
            key = base64.b64decode(fields["key"], validate=True)
            prints = {
                int(checksum): base64.b64decode(digest, validate=True)
                for checksum, digest in fields["prints"].items()
            }
            return Canary(str(fields["name"]), key, prints)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise self.stored.broken() from None


def encode_canary(canary: Canary) -> dict[str, Any]:
    """The entry to store: digests, and no text."""
    return {
        "name": canary.name,
        "key": base64.b64encode(canary.key).decode("ascii"),
        "prints": {
            str(checksum): base64.b64encode(digest).decode("ascii")
            for checksum, digest in canary.prints.items()
        },
    }


@dataclass(frozen=True, slots=True)
class CanaryCheck:
    """Implements `ContentCheck`."""

    canaries: CanaryList
    kind: Literal["canary"] = "canary"

    @property
    def is_active(self) -> bool:
        return self.canaries.current() is not None

    def stream(self) -> ContentStream:
        canaries = self.canaries.current()
        return _NOTHING if canaries is None else canaries.stream()


class _NothingToFind:
    def feed(self, _: bytes) -> str | None:
        return None


_NOTHING = _NothingToFind()
