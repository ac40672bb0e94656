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
from dataclasses import dataclass, replace
from itertools import islice

from cellwall.core.errors import VaultError
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
    KeyBytes,
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
    """The MAC of the vault file."""
    mac: bytes = b""

    def signed(self) -> bytes:
        return canonical(
            {
                "schema": _SEEN_SCHEMA,
                "vault": self.vault,
                "generation": self.generation,
                "store": self.store.hex(),
            }
        )

    def encode(self) -> bytes:
        return self.signed() + b"\n" + self.mac.hex().encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Both files at one moment."""

    frame: VaultFrame
    note: GenerationNote | None
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
    file = folder.read(STORE, max_bytes=MAX_FILE_BYTES)
    if file is None:
        raise failures.missing()
    note = read_note(folder)
    return Snapshot(read_frame(file.data), note, file.identity)


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
    preamble, note = snapshot.frame.preamble, snapshot.note
    if not restored and note is not None and note.vault != preamble.vault:
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
        is_noted=snapshot.note is not None and snapshot.note.store == frame.mac,
    )


def _open_inner_keys(content: VaultContent, vault: str, page: KeyPage) -> KnownDigests:
    try:
        inner_keys = unseal(page.buffer("seal"), content.keys, part_aad(vault=vault, part="keys"))
        known = unseal(page.buffer("seal"), content.known, part_aad(vault=vault, part="known"))
    except BadSeal:
        raise failures.tampered("the inner keys or the digests do not decrypt") from None
    for number, name in enumerate(_INNER_KEYS):
        page.buffer(name)[:] = inner_keys[number * KEY_BYTES : (number + 1) * KEY_BYTES]
    wipe(inner_keys)
    return parse_known(known)


def seal_inner_keys(page: KeyPage, vault: str) -> Ciphertext:
    """Encrypt the keys inside a vault, for its content."""
    inner_keys = bytearray().join(page.buffer(name) for name in _INNER_KEYS)
    try:
        return seal(page.buffer("seal"), inner_keys, part_aad(vault=vault, part="keys"))
    finally:
        wipe(inner_keys)


def seal_known(page: KeyPage, vault: str, known: KnownDigests) -> Ciphertext:
    """Encrypt the digests, for its content."""
    return seal(page.buffer("seal"), known.to_bytes(), part_aad(vault=vault, part="known"))


def _check_seen(snapshot: Snapshot, page: KeyPage) -> None:
    note, preamble = snapshot.note, snapshot.frame.preamble
    if note is None:
        raise failures.rolled_back("the note of the last generation is gone")
    # The previous key counts, too: a rekey may have been killed before it wrote the note.
    signers = [page.buffer("watch"), page.buffer("watch_before")]
    if not any(_is_signed(note, signer) for signer in signers):
        raise failures.tampered("the note of the last generation")
    if note.vault != preamble.vault:
        raise failures.swapped("the vault is another one")
    is_older = note.generation > preamble.generation
    is_fork = note.generation == preamble.generation and note.store != snapshot.frame.mac
    if is_older or is_fork:
        raise failures.rolled_back(f"{note.generation} was seen, this is {preamble.generation}")


def _is_signed(note: GenerationNote, key: memoryview) -> bool:
    return any(key) and digests_equal(mac_of(key, note.signed()), note.mac)


def noted_generation(snapshot: Snapshot, page: KeyPage) -> int:
    """The generation in a note with a valid MAC; 0 without one."""
    note = snapshot.note
    is_ours = note is not None and _is_signed(note, page.buffer("watch"))
    return note.generation if note is not None and is_ours else 0


def _diagnose_bad_mac(frame: VaultFrame, key: KeyBytes) -> Exception:
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


def _opens(key: KeyBytes, sealed: Ciphertext, aad: bytes) -> bool:
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
        write_note(folder, preamble.vault, preamble.generation, mac, page)
    except OSError as error:
        raise failures.unnoted(error) from None
    return saved


def write_note(folder: VaultFolder, vault: str, generation: int, mac: bytes, page: KeyPage) -> None:
    """Note that this generation was seen: before a new vault exists, and after each change."""
    note = GenerationNote(vault, generation, mac)
    signed = replace(note, mac=mac_of(page.buffer("watch"), note.signed()))
    folder.replace(SEEN, signed.encode())


def _parse_note(data: bytes) -> GenerationNote:
    first, _, rest = data.partition(b"\n")
    try:
        fields, mac = json.loads(first), rest.decode()
        note = GenerationNote(
            fields["vault"], fields["generation"], _parse_hex(fields["store"]), _parse_hex(mac[:-1])
        )
        if type(note.generation) is not int or data != note.encode():
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise failures.tampered("the note of the last generation") from None
    return note


def _parse_hex(text: object) -> bytes:
    if not isinstance(text, str) or _HEX.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text)
