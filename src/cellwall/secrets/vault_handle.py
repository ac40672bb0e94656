"""The state of an open or locked vault, and the only way to change it.

Safe for threads and processes: each change happens under a lock, on the current file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from cellwall.core.errors import VaultError
from cellwall.core.ids import new_id
from cellwall.secrets import failures, vault_file
from cellwall.secrets.folder import STORE, VaultFolder, identity_at, open_folder, peek_folder
from cellwall.secrets.format import KeySlot, Secret, VaultContent, VaultPreamble, VaultSettings
from cellwall.secrets.keys import VaultKeys
from cellwall.secrets.sealing import MAC_BYTES, KeyPage, derive_into
from cellwall.secrets.values import KnownDigests, reseal
from cellwall.secrets.vault_file import OpenVault

_USUAL_KEY_FILE = "vault-key"


class VaultHandle:
    """The handle of the vault in one directory."""

    def __init__(self, directory: str, settings: VaultSettings) -> None:
        self._directory = os.path.abspath(directory)
        self._store_path = os.path.join(self._directory, STORE)
        usual = os.path.join(os.path.dirname(self._directory), _USUAL_KEY_FILE)
        self.keys = VaultKeys(settings, usual)
        self.mutex = threading.RLock()
        self._page: KeyPage | None = None
        self._vault: OpenVault | None = None

    @property
    def exists(self) -> bool:
        """Also True where the file is unreadable or lost: False only if there never was a vault."""
        try:
            os.stat(self._store_path, follow_symlinks=False)
        except FileNotFoundError:
            return self._has_orphan_note()
        except OSError:
            return True
        return True

    def _has_orphan_note(self) -> bool:
        """True if a note is left of a vault that is gone; generation 0 is left by a killed
        `init`."""
        try:
            with peek_folder(self._directory) as folder:
                note = vault_file.read_note(folder)
        except VaultError as error:
            return error.code != failures.missing().code
        return note is not None and note.generation > 0

    @property
    def is_unlocked(self) -> bool:
        return self._page is not None and self._page.is_live

    @property
    def was_opened(self) -> bool:
        """Also True where the keys are no longer usable."""
        return self._vault is not None

    @property
    def page(self) -> KeyPage:
        """The keys; raises `VaultError` while the vault is locked."""
        if self._page is None or not self._page.is_live:
            raise failures.locked()
        return self._page

    def slot(self) -> KeySlot:
        """The key slot; readable while the vault is locked."""
        return self._read().frame.preamble.slot

    def current(self) -> OpenVault:
        """The vault as it is on disk now: other processes may have rotated, revoked or removed
        secrets."""
        with self.mutex:
            opened = self._require_unlocked()
            if identity_at(self._store_path) == opened.identity:
                return opened
            return self._reload(self._read())

    def init(self, passphrase: bytearray | None) -> None:
        """Create an empty vault and unlock it."""
        with self.mutex, open_folder(self._directory, alone=True, make=True) as folder:
            if self.exists:
                raise failures.exists(self._directory)
            page, vault, known = _new_page(), new_id("vlt"), KnownDigests()
            page.make("digest")
            slot = self.keys.new_slot(vault, passphrase, page)
            content = VaultContent(
                secrets={},
                keys=vault_file.seal_inner_keys(page, vault),
                known=vault_file.seal_known(page, vault, known),
            )
            vault_file.write_note(folder, vault, 0, bytes(MAC_BYTES), page)
            saved = vault_file.save(folder, VaultPreamble(vault, 1, slot), content, known, page)
            self._adopt(saved, page)

    def open(self, passphrase: bytearray | None, *, restored: bool) -> None:
        """Verify every byte and hold the keys in memory."""
        # Without the lock: a passphrase prompt or a slow KMS must not block other processes.
        snapshot, page = self._read(), KeyPage()
        try:
            opened = vault_file.open_vault(snapshot, self.keys, passphrase, page, restored=restored)
        except BaseException:
            page.wipe()
            raise
        if restored:
            reached = max(opened.preamble.generation, vault_file.noted_generation(snapshot, page))
            opened = replace(opened, preamble=replace(opened.preamble, generation=reached))
        with self.mutex:
            self._adopt(opened, page)
            if not restored:
                self._finish_interrupted_write()

    def lock(self) -> None:
        """Wipe the keys."""
        with self.mutex:
            if self._page is not None:
                self._page.wipe()
            self._page = self._vault = None

    def rekey(self, keys: VaultKeys, passphrase: bytearray | None) -> None:
        """Create a new vault key behind a new wrapping key. All of it is one new file, so a kill
        leaves the old vault or the new one; a stored key exists before the vault needs it and is
        removed after (SEC-6)."""
        with self.change() as (folder, opened):
            old, page, vault = self.page, _new_page(), opened.preamble.vault
            page.buffer("digest")[:] = old.buffer("digest")
            page.buffer("watch_before")[:] = old.buffer("watch")
            slot = keys.new_slot(vault, passphrase, page)
            content = VaultContent(
                secrets={
                    name: reseal(name, secret, old, page)
                    for name, secret in opened.content.secrets.items()
                },
                keys=vault_file.seal_inner_keys(page, vault),
                known=vault_file.seal_known(page, vault, opened.known),
            )
            preamble = VaultPreamble(vault, opened.preamble.generation + 1, slot)
            saved = vault_file.save(folder, preamble, content, opened.known, page)
            before, self.keys = self.keys, keys
            self._adopt(saved, page)
            source = opened.preamble.slot.source
            with suppress(VaultError):  # the rekey is done; the next `open` removes them
                keys.forget_others(vault, slot)
                if before.storage(source) != keys.storage(slot.source):
                    before.forget_all(vault, source)

    @contextmanager
    def change(self) -> Iterator[tuple[VaultFolder, OpenVault]]:
        """The directory, locked exclusively, and its current content."""
        with self.mutex, open_folder(self._directory, alone=True) as folder:
            opened = self._require_unlocked()
            if identity_at(self._store_path) != opened.identity:
                opened = self._reload(vault_file.read(folder))
            yield folder, opened

    def write(
        self,
        folder: VaultFolder,
        vault: OpenVault,
        changed: Mapping[str, Secret | None],
        *,
        known: KnownDigests | None = None,
        slot: KeySlot | None = None,
    ) -> None:
        """Write the next generation; None removes a secret."""
        preamble, merged = vault.preamble, {**vault.content.secrets, **changed}
        content = replace(
            vault.content,
            secrets={name: each for name, each in merged.items() if each is not None},
        )
        if known is not None:
            content = replace(
                content, known=vault_file.seal_known(self.page, preamble.vault, known)
            )
        following = VaultPreamble(preamble.vault, preamble.generation + 1, slot or preamble.slot)
        self._vault = vault_file.save(folder, following, content, known or vault.known, self.page)

    def _require_unlocked(self) -> OpenVault:
        if self._vault is None or not self.is_unlocked:
            raise failures.locked()
        return self._vault

    def _read(self) -> vault_file.Snapshot:
        with open_folder(self._directory, alone=False) as folder:
            return vault_file.read(folder)

    def _reload(self, snapshot: vault_file.Snapshot) -> OpenVault:
        before = self._require_unlocked()
        try:
            fresh = vault_file.verify_snapshot(snapshot, self.page)
        except VaultError:
            # With another key slot the file may be valid but no longer readable with our keys.
            if snapshot.frame.preamble.slot.sealed != before.preamble.slot.sealed:
                raise failures.rekeyed() from None
            raise
        self._vault = fresh
        return fresh

    def _adopt(self, vault: OpenVault, page: KeyPage) -> None:
        before, self._page, self._vault = self._page, page, vault
        if before is not None:
            before.wipe()

    def _finish_interrupted_write(self) -> None:
        """Complete the write of a killed process: note its generation, remove old keys."""
        opened = self._require_unlocked()
        slot, vault = opened.preamble.slot, opened.preamble.vault
        with suppress(VaultError):  # a read-only key file still opens the vault
            if opened.is_noted and not self.keys.has_others(vault, slot):
                return
            with self.change() as (folder, now):
                preamble = now.preamble
                vault_file.write_note(folder, vault, preamble.generation, now.mac, self.page)
                self.keys.forget_others(vault, preamble.slot)


def _new_page() -> KeyPage:
    page = KeyPage()
    key = page.make("vault")
    derive_into(key, "seal", page.buffer("seal"))
    derive_into(key, "sign", page.buffer("sign"))
    page.make("watch")
    return page
