"""Reading and writing the vault as a whole, and telling what is wrong with it (SEC-7).

   (1) private files of ours, read together under the lock
   (2) whole: not cut off, and as its own digest says
   (3) of the vault that was here the last time
   (4) the key is the right one, and opens the vault key
   (5) the MAC over everything is right; if not, whether values were exchanged
   (6) the keys and digests within it open
   (7) not older than the last generation that was seen

A write goes: the new file, durable; then the note of its generation, durable. Killed in between,
the note is older than the file, which is fine; a file that is older than the note is a roll-back.
Who restores both is not found here: the audit record holds each generation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice

from cellwall.core.errors import VaultError
from cellwall.core.types import Json
from cellwall.secrets import failures
from cellwall.secrets.folder import SEEN, STORE, Folder, Identity
from cellwall.secrets.format import (
    MAX_FILE_BYTES,
    NAMESPACE,
    Content,
    Frame,
    Opening,
    Secret,
    Version,
    finish_frame,
    read_content,
    read_frame,
    to_sign,
)
from cellwall.secrets.keys import Keys
from cellwall.secrets.sealing import (
    KEY_BYTES,
    MAC_BYTES,
    BadSeal,
    Key,
    KeyPage,
    Sealed,
    about_part,
    about_record,
    canonical,
    derive_into,
    is_same,
    mac_of,
    seal,
    unseal,
    wipe,
)
from cellwall.secrets.values import KnownDigests, read_known

_SEEN_SCHEMA = "cellwall.vault-seen/1"
_MAX_SEEN_BYTES = 1024
_MAX_TRIALS = 20_000
_HEX = re.compile(rf"[0-9a-f]{{{2 * MAC_BYTES}}}")
_KEPT = ("digest", "watch", "watch_before")
"""The keys within a vault, in their order; the last one is zeros but after a rekey."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The note of the last generation, as it was read."""

    vault: str
    generation: int
    store: bytes
    mac: bytes

    def signed(self) -> bytes:
        return _seen_signed(self.vault, self.generation, self.store)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Both files as they were at one moment."""

    frame: Frame
    seen: Seen | None
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A vault whose every byte is vouched for."""

    opening: Opening
    content: Content
    known: KnownDigests
    mac: bytes
    identity: Identity
    is_noted: bool
    """Whether the note of the last generation is of this one."""


def read(folder: Folder) -> Snapshot:
    """Steps (1) and (2)."""
    found = folder.read(STORE, max_bytes=MAX_FILE_BYTES)
    if found is None:
        raise failures.missing()
    seen = read_note(folder)
    return Snapshot(read_frame(found.data), seen, found.identity)


def read_note(folder: Folder) -> Seen | None:
    """As it says of itself: only a key vouches for it."""
    note = folder.read(SEEN, max_bytes=_MAX_SEEN_BYTES)
    return None if note is None else _read_seen(note.data)


def open_vault(
    snapshot: Snapshot, keys: Keys, passphrase: bytearray | None, page: KeyPage, *, restored: bool
) -> Opened:
    """Steps (3) to (7); `restored`: a person says that an older one is what they operation."""
    opening, seen = snapshot.frame.opening, snapshot.seen
    if not restored and seen is not None and seen.vault != opening.vault:
        raise failures.swapped("the vault is another one")  # (3)
    keys.open(opening.vault, opening.slot, passphrase, page)  # (4)
    derive_into(page.room("vault"), "seal", page.room("seal"))
    derive_into(page.room("vault"), "sign", page.room("sign"))
    return vouched(snapshot, page, restored=restored)


def vouched(snapshot: Snapshot, page: KeyPage, *, restored: bool = False) -> Opened:
    """Steps (5) to (7), with the keys in the page."""
    frame = snapshot.frame
    if not is_same(mac_of(page.room("sign"), frame.signed), frame.mac):
        raise _what_was_done(frame, page.room("seal"))  # (5)
    content = read_content(frame.content)
    vault = frame.opening.vault
    known = _open_within(content, vault, page)  # (6)
    if not restored:
        _check_seen(snapshot, page)  # (7)
    return Opened(
        opening=frame.opening,
        content=content,
        known=known,
        mac=frame.mac,
        identity=snapshot.identity,
        is_noted=snapshot.seen is not None and snapshot.seen.store == frame.mac,
    )


def _open_within(content: Content, vault: str, page: KeyPage) -> KnownDigests:
    try:
        kept = unseal(page.room("seal"), content.keys, about_part(vault=vault, part="keys"))
        known = unseal(page.room("seal"), content.known, about_part(vault=vault, part="known"))
    except BadSeal:
        raise failures.tampered("what is within does not open") from None
    for number, name in enumerate(_KEPT):
        page.room(name)[:] = kept[number * KEY_BYTES : (number + 1) * KEY_BYTES]
    wipe(kept)
    return read_known(known)


def seal_kept(page: KeyPage, vault: str) -> Sealed:
    """The keys that are within a vault, for its content."""
    kept = bytearray().join(page.room(name) for name in _KEPT)
    try:
        return seal(page.room("seal"), kept, about_part(vault=vault, part="keys"))
    finally:
        wipe(kept)


def seal_known(page: KeyPage, vault: str, known: KnownDigests) -> Sealed:
    """The digests, for its content."""
    return seal(page.room("seal"), known.to_bytes(), about_part(vault=vault, part="known"))


def _check_seen(snapshot: Snapshot, page: KeyPage) -> None:
    seen, opening = snapshot.seen, snapshot.frame.opening
    if seen is None:
        raise failures.rolled_back("the note of the last generation is gone")
    # The key before counts, too: a rekey may have been killed before it wrote the note.
    signers = [page.room("watch"), page.room("watch_before")]
    if not any(_is_signed(seen, signer) for signer in signers):
        raise failures.tampered("the note of the last generation")
    if seen.vault != opening.vault:
        raise failures.swapped("the vault is another one")
    is_older = seen.generation > opening.generation
    is_fork = seen.generation == opening.generation and seen.store != snapshot.frame.mac
    if is_older or is_fork:
        raise failures.rolled_back(f"{seen.generation} was seen, this is {opening.generation}")


def _is_signed(seen: Seen, key: memoryview) -> bool:
    return any(key) and is_same(mac_of(key, seen.signed()), seen.mac)


def noted_generation(snapshot: Snapshot, page: KeyPage) -> int:
    """Of a note that can be believed; 0 without one."""
    seen = snapshot.seen
    is_ours = seen is not None and _is_signed(seen, page.room("watch"))
    return seen.generation if seen is not None and is_ours else 0


def _what_was_done(frame: Frame, key: Key) -> Exception:
    """Values that open in another place than their own were exchanged."""
    try:
        content = read_content(frame.content)
    except VaultError as error:
        return error
    places = [
        (about_record(namespace=NAMESPACE, name=name, version=version.number), version.sealed)
        for name, secret in content.secrets.items()
        for version in versions_of(secret)
    ]
    strays = [(about, sealed) for about, sealed in places if not _opens(key, sealed, about)]
    trials = ((sealed, about) for own, sealed in strays for about, _ in places if about != own)
    if any(_opens(key, sealed, about) for sealed, about in islice(trials, _MAX_TRIALS)):
        return failures.swapped("values are not in their own places")
    return failures.tampered("the MAC is another one")


def _opens(key: Key, sealed: Sealed, about: bytes) -> bool:
    try:
        wipe(unseal(key, sealed, about))
    except BadSeal:
        return False
    return True


def versions_of(secret: Secret) -> tuple[Version, ...]:
    """Those whose values are in the vault."""
    return (secret.current,) if secret.previous is None else (secret.current, secret.previous)


def save(
    folder: Folder, opening: Opening, content: Content, known: KnownDigests, page: KeyPage
) -> Opened:
    """The vault, then the note of its generation; each durable before the next step."""
    signed = to_sign(opening, content)
    mac = mac_of(page.room("sign"), signed)
    data = finish_frame(signed, mac)
    folder.sweep()
    identity = folder.replace(STORE, data)
    saved = Opened(
        opening=opening,
        content=content,
        known=known,
        mac=mac,
        identity=identity,
        is_noted=True,
    )
    try:
        note(folder, saved, page)
    except OSError as error:
        raise failures.unnoted(error) from None
    return saved


def note(folder: Folder, opened: Opened, page: KeyPage) -> None:
    """That this generation was seen."""
    note_new(folder, opened.opening.vault, opened.opening.generation, opened.mac, page)


def note_new(folder: Folder, vault: str, generation: int, mac: bytes, page: KeyPage) -> None:
    """For a vault that is not there yet: whoever finds no note at all knows that it was removed."""
    signed = _seen_signed(vault, generation, mac)
    folder.replace(SEEN, _seen_bytes(signed, mac_of(page.room("watch"), signed)))


def _seen_signed(vault: str, generation: int, store: bytes) -> bytes:
    told: dict[str, Json] = {"vault": vault, "generation": generation, "store": store.hex()}
    return canonical({"schema": _SEEN_SCHEMA, **told})


def _read_seen(data: bytes) -> Seen:
    first, _, rest = data.partition(b"\n")
    try:
        told, mac = json.loads(first), rest.decode()
        seen = Seen(told["vault"], told["generation"], _hex(told["store"]), _hex(mac[:-1]))
        if type(seen.generation) is not int or data != _seen_bytes(seen.signed(), seen.mac):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise failures.tampered("the note of the last generation") from None
    return seen


def _seen_bytes(signed: bytes, mac: bytes) -> bytes:
    return signed + b"\n" + mac.hex().encode() + b"\n"


def _hex(text: object) -> bytes:
    if not isinstance(text, str) or _HEX.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text)
