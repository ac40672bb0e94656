"""Values, sealed each in its own place. Plain ones stand in buffers that are wiped."""

from __future__ import annotations

from dataclasses import replace

from holdfast.secrets import failures
from holdfast.secrets.format import NAMESPACE, Secret, Version
from holdfast.secrets.memory import KeyPage, wipe
from holdfast.secrets.sealing import (
    BadSeal,
    about_record,
    padded,
    seal,
    unseal,
    value_in,
)

MOST_VALUE_BYTES = 64 * 1024


def check_value(value: bytes | bytearray) -> None:
    """Raises `BadInput` for one that is empty or too long."""
    if not 0 < len(value) <= MOST_VALUE_BYTES:
        raise failures.bad_input(
            f"a value has 1 to {MOST_VALUE_BYTES} bytes",
            mend="Give it on standard input, or at the prompt.",
            code="HF-VAULT-VALUE",
        )


def new_version(
    page: KeyPage, name: str, number: int, value: bytes | bytearray, *, made_s: float
) -> Version:
    """A value, sealed for its place."""
    plain = padded(value)
    try:
        return Version(number, made_s, seal(page.room("seal"), plain, _about(name, number)))
    finally:
        wipe(plain)


def value_of(page: KeyPage, name: str, version: Version) -> bytes:
    """The value itself, which nobody can wipe any more: only for whoever puts it on the wire."""
    plain = _opened(page, name, version)
    try:
        return bytes(value_in(plain))
    except BadSeal:
        raise failures.tampered("a value has no length") from None
    finally:
        wipe(plain)


def resealed(name: str, secret: Secret, old: KeyPage, new: KeyPage) -> Secret:
    """The same values under another vault key."""

    def again(version: Version) -> Version:
        plain = _opened(old, name, version)
        try:
            sealed = seal(new.room("seal"), plain, _about(name, version.number))
            return replace(version, sealed=sealed)
        finally:
            wipe(plain)

    previous = None if secret.previous is None else again(secret.previous)
    return replace(secret, current=again(secret.current), previous=previous)


def _opened(page: KeyPage, name: str, version: Version) -> bytearray:
    try:
        return unseal(page.room("seal"), version.sealed, _about(name, version.number))
    except BadSeal:
        raise failures.tampered("a value does not open") from None


def _about(name: str, number: int) -> bytes:
    return about_record(namespace=NAMESPACE, name=name, version=number)
