"""Reads, verifies and writes the vault file as a whole (SEC-7).

   (1) private files of ours, read together under the lock
   (2) complete: not truncated, and matching its own digest
   (3) the same vault as the last time
   (4) the key is right, and opens the vault key
   (5) the MAC over everything is right; if not, whether values were swapped
   (6) the keys and digests inside it decrypt
   (7) not older than the last generation that was seen

A write replaces the file durably, then the note of its generation. After a kill in between, the
note is older than the file, which is fine; a file older than the note was rolled back. An attacker
who restores both is not detected here: the audit log holds each generation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice

from cellwall.core.errors import VaultError
from cellwall.core.types import Json
from cellwall.secrets import failures
from cellwall.secrets.folder import SEEN, STORE, FileIdentity, VaultFolder
from cellwall.secrets.format import (
    MAX_FILE_BYTES,
    NAMESPACE,
    Secret,
    VaultContent,
    VaultFrame,
    VaultPreamble,
    Version,
    finish_frame,
    read_content,
    read_frame,
    to_sign,
)
from cellwall.secrets.keys import VaultKeys
from cellwall.secrets.sealing import (
    KEY_BYTES,
    MAC_BYTES,
    BadSeal,
    Ciphertext,
    Key,
    KeyPage,
    canonical,
    derive_into,
    digests_equal,
    mac_of,
    part_aad,
    record_aad,
    seal,
    unseal,
    wipe,
)
from cellwall.secrets.values import KnownDigests, parse_known

_SEEN_SCHEMA = "cellwall.vault-seen/1"
_MAX_SEEN_BYTES = 1024
_MAX_TRIALS = 20_000
_HEX = re.compile(rf"[0-9a-f]{{{2 * MAC_BYTES}}}")
_INNER_KEYS = ("digest", "watch", "watch_before")
"""The keys inside a vault, in order; the last one is zeros except after a rekey."""


@dataclass(frozen=True, slots=True)
class GenerationNote:
    """The note of the last generation, as read."""

    vault: str
    generation: int
    store: bytes
    mac: bytes

    def signed(self) -> bytes:
        return _note_signed_bytes(self.vault, self.generation, self.store)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Both files at one moment."""

    frame: VaultFrame
    seen: GenerationNote | None
    identity: FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVault:
    """A vault whose every byte is verified."""

    preamble: VaultPreamble
    content: VaultContent
    known: KnownDigests
    mac: bytes
    identity: FileIdentity
    is_noted: bool
    """True if the note is of this generation."""


def read(folder: VaultFolder) -> Snapshot:
    """Steps (1) and (2)."""
    found = folder.read(STORE, max_bytes=MAX_FILE_BYTES)
    if found is None:
        raise failures.missing()
    seen = read_note(folder)
    return Snapshot(read_frame(found.data), seen, found.identity)


def read_note(folder: VaultFolder) -> GenerationNote | None:
    """The note as it stands: not yet verified with a key."""
    note = folder.read(SEEN, max_bytes=_MAX_SEEN_BYTES)
    return None if note is None else _parse_note(note.data)


def open_vault(
    snapshot: Snapshot,
    keys: VaultKeys,
    passphrase: bytearray | None,
    page: KeyPage,
    *,
    restored: bool,
) -> OpenVault:
    """Steps (3) to (7). `restored`: a person confirms that an older vault is intended."""
    preamble, seen = snapshot.frame.preamble, snapshot.seen
    if not restored and seen is not None and seen.vault != preamble.vault:
        raise failures.swapped("the vault is another one")  # (3)
    keys.open(preamble.vault, preamble.slot, passphrase, page)  # (4)
    derive_into(page.buffer("vault"), "seal", page.buffer("seal"))
    derive_into(page.buffer("vault"), "sign", page.buffer("sign"))
    return verify_snapshot(snapshot, page, restored=restored)


def verify_snapshot(snapshot: Snapshot, page: KeyPage, *, restored: bool = False) -> OpenVault:
    """Steps (5) to (7), with the keys in the page."""
    frame = snapshot.frame
    if not digests_equal(mac_of(page.buffer("sign"), frame.signed), frame.mac):
        raise _diagnose_bad_mac(frame, page.buffer("seal"))  # (5)
    content = read_content(frame.content)
    vault = frame.preamble.vault
    known = _open_inner_keys(content, vault, page)  # (6)
    if not restored:
        _check_seen(snapshot, page)  # (7)
    return OpenVault(
        preamble=frame.preamble,
        content=content,
        known=known,
        mac=frame.mac,
        identity=snapshot.identity,
        is_noted=snapshot.seen is not None and snapshot.seen.store == frame.mac,
    )


def _open_inner_keys(content: VaultContent, vault: str, page: KeyPage) -> KnownDigests:
    try:
        kept = unseal(page.buffer("seal"), content.keys, part_aad(vault=vault, part="keys"))
        known = unseal(page.buffer("seal"), content.known, part_aad(vault=vault, part="known"))
    except BadSeal:
        raise failures.tampered("what is within does not open") from None
    for number, name in enumerate(_INNER_KEYS):
        page.buffer(name)[:] = kept[number * KEY_BYTES : (number + 1) * KEY_BYTES]
    wipe(kept)
    return parse_known(known)


def seal_inner_keys(page: KeyPage, vault: str) -> Ciphertext:
    """Encrypt the keys inside a vault, for its content."""
    kept = bytearray().join(page.buffer(name) for name in _INNER_KEYS)
    try:
        return seal(page.buffer("seal"), kept, part_aad(vault=vault, part="keys"))
    finally:
        wipe(kept)


def seal_known(page: KeyPage, vault: str, known: KnownDigests) -> Ciphertext:
    """Encrypt the digests, for its content."""
    return seal(page.buffer("seal"), known.to_bytes(), part_aad(vault=vault, part="known"))


def _check_seen(snapshot: Snapshot, page: KeyPage) -> None:
    seen, preamble = snapshot.seen, snapshot.frame.preamble
    if seen is None:
        raise failures.rolled_back("the note of the last generation is gone")
    # The previous key counts, too: a rekey may have been killed before it wrote the note.
    signers = [page.buffer("watch"), page.buffer("watch_before")]
    if not any(_is_signed(seen, signer) for signer in signers):
        raise failures.tampered("the note of the last generation")
    if seen.vault != preamble.vault:
        raise failures.swapped("the vault is another one")
    is_older = seen.generation > preamble.generation
    is_fork = seen.generation == preamble.generation and seen.store != snapshot.frame.mac
    if is_older or is_fork:
        raise failures.rolled_back(f"{seen.generation} was seen, this is {preamble.generation}")


def _is_signed(seen: GenerationNote, key: memoryview) -> bool:
    return any(key) and digests_equal(mac_of(key, seen.signed()), seen.mac)


def noted_generation(snapshot: Snapshot, page: KeyPage) -> int:
    """The generation in a note with a valid MAC; 0 without one."""
    seen = snapshot.seen
    is_ours = seen is not None and _is_signed(seen, page.buffer("watch"))
    return seen.generation if seen is not None and is_ours else 0


def _diagnose_bad_mac(frame: VaultFrame, key: Key) -> Exception:
    """Values that decrypt in another place than their own were swapped."""
    try:
        content = read_content(frame.content)
    except VaultError as error:
        return error
    places = [
        (record_aad(namespace=NAMESPACE, name=name, version=version.number), version.sealed)
        for name, secret in content.secrets.items()
        for version in versions_of(secret)
    ]
    strays = [(aad, sealed) for aad, sealed in places if not _opens(key, sealed, aad)]
    trials = ((sealed, aad) for own, sealed in strays for aad, _ in places if aad != own)
    if any(_opens(key, sealed, aad) for sealed, aad in islice(trials, _MAX_TRIALS)):
        return failures.swapped("values are not in their own places")
    return failures.tampered("the MAC is another one")


def _opens(key: Key, sealed: Ciphertext, aad: bytes) -> bool:
    try:
        wipe(unseal(key, sealed, aad))
    except BadSeal:
        return False
    return True


def versions_of(secret: Secret) -> tuple[Version, ...]:
    """The versions whose values are in the vault."""
    return (secret.current,) if secret.previous is None else (secret.current, secret.previous)


def save(
    folder: VaultFolder,
    preamble: VaultPreamble,
    content: VaultContent,
    known: KnownDigests,
    page: KeyPage,
) -> OpenVault:
    """Write the vault, then the note of its generation; each durable before the next step."""
    signed = to_sign(preamble, content)
    mac = mac_of(page.buffer("sign"), signed)
    data = finish_frame(signed, mac)
    folder.sweep()
    identity = folder.replace(STORE, data)
    saved = OpenVault(
        preamble=preamble,
        content=content,
        known=known,
        mac=mac,
        identity=identity,
        is_noted=True,
    )
    try:
        write_note(folder, saved, page)
    except OSError as error:
        raise failures.unnoted(error) from None
    return saved


def write_note(folder: VaultFolder, opened: OpenVault, page: KeyPage) -> None:
    """Note that this generation was seen."""
    write_first_note(folder, opened.preamble.vault, opened.preamble.generation, opened.mac, page)


def write_first_note(
    folder: VaultFolder, vault: str, generation: int, mac: bytes, page: KeyPage
) -> None:
    """For a vault that does not exist yet: a vault without any note was tampered with."""
    signed = _note_signed_bytes(vault, generation, mac)
    folder.replace(SEEN, _encode_note(signed, mac_of(page.buffer("watch"), signed)))


def _note_signed_bytes(vault: str, generation: int, store: bytes) -> bytes:
    fields: dict[str, Json] = {"vault": vault, "generation": generation, "store": store.hex()}
    return canonical({"schema": _SEEN_SCHEMA, **fields})


def _parse_note(data: bytes) -> GenerationNote:
    first, _, rest = data.partition(b"\n")
    try:
        fields, mac = json.loads(first), rest.decode()
        seen = GenerationNote(
            fields["vault"], fields["generation"], _parse_hex(fields["store"]), _parse_hex(mac[:-1])
        )
        if type(seen.generation) is not int or data != _encode_note(seen.signed(), seen.mac):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise failures.tampered("the note of the last generation") from None
    return seen


def _encode_note(signed: bytes, mac: bytes) -> bytes:
    return signed + b"\n" + mac.hex().encode() + b"\n"


def _parse_hex(text: object) -> bytes:
    if not isinstance(text, str) or _HEX.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text)
