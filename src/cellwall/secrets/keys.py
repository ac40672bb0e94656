"""The key that wraps the vault key: from a passphrase, a file, the key ring or a command (SEC-1).

The vault states which kind opens it; only the configuration states where to find the key, so a
forged vault cannot name a file or a program of its own.
"""

# ruff: noqa: PLC0415  # late imports: argon2 loads slowly, and most runs open no vault

from __future__ import annotations

import os
import select
import subprocess  # named in the import contracts: the operator's own command, never an agent's
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cellwall.core.host_programs import ProgramRefused, operator_program
from cellwall.core.ids import new_id
from cellwall.secrets import failures, key_storage
from cellwall.secrets.format import CHECK_BYTES, SALT_BYTES, Argon2, KeySlot, VaultSettings
from cellwall.secrets.key_storage import KeyFile, KeyRing, KeyStorage
from cellwall.secrets.sealing import (
    KEY_BYTES,
    BadSeal,
    KeyPage,
    derive_into,
    digests_equal,
    extract_into,
    seal,
    unseal_into,
    wipe,
)

if TYPE_CHECKING:
    from cellwall.secrets.format import KeySource

MIN_PASSPHRASE_BYTES = 8
MAX_PASSPHRASE_BYTES = 1024
# Upper limits for a file that an attacker may have written, unless the configuration asks for more.
_MAX_MEMORY_KIB = 1_048_576
_MAX_PASSES = 16


@dataclass(frozen=True, slots=True)
class VaultKeys:
    """Creates and finds wrapping keys according to the settings."""

    settings: VaultSettings
    usual_file: str

    def storage(self, source: KeySource) -> KeyStorage | None:
        """Where keys of this kind are stored; None for kinds that are never stored."""
        match source:
            case "file":
                return KeyFile(os.path.abspath(self.settings.key_file or self.usual_file))
            case "keyring":
                return KeyRing()
            case "passphrase" | "command":
                return None

    def open(self, vault: str, slot: KeySlot, passphrase: bytearray | None, page: KeyPage) -> None:
        """Decrypt the vault key into the page; raises `VaultError` for a wrong key."""
        secret = self._secret(vault, slot, passphrase)
        wrapping = bytearray(KEY_BYTES)
        try:
            check = _derive_wrapping_key(secret, slot, wrapping)
            if not digests_equal(check, slot.check):
                raise failures.wrong_key()
            try:
                unseal_into(wrapping, slot.sealed, slot.aad(vault), page.buffer("vault"))
            except BadSeal:
                raise failures.tampered("the key is right, what it seals is not") from None
        finally:
            wipe(wrapping)
            if secret is not passphrase:
                wipe(secret)

    def _secret(self, vault: str, slot: KeySlot, passphrase: bytearray | None) -> bytearray:
        storage = self.storage(slot.source)
        if storage is not None:
            return key_storage.read_key(storage, vault, slot.key_id)
        if slot.source == "command":
            return run_key_command(self.settings.key_command)
        if passphrase is None:
            raise failures.no_key(
                "the vault is opened by a passphrase, and none was given",
                hint="Run it on a terminal, or give --passphrase-fd.",
            )
        self._check_cost(slot.argon2)
        return passphrase

    def _check_cost(self, cost: Argon2 | None) -> None:
        max_kib = max(_MAX_MEMORY_KIB, self.settings.argon2_memory_kib)
        max_passes = max(_MAX_PASSES, self.settings.argon2_passes)
        if cost is None or cost.memory_kib > max_kib or cost.passes > max_passes:
            raise failures.costly()

    def new_slot(self, vault: str, passphrase: bytearray | None, page: KeyPage) -> KeySlot:
        """Wrap the vault key of the page anew. The caller holds the vault's lock exclusively."""
        source, salt = self.settings.key, os.urandom(SALT_BYTES)
        storage = self.storage(source)
        key_id = "" if storage is None else new_id("key")
        slot = KeySlot(source=source, salt=salt, key_id=key_id, argon2=self._argon2(source))
        if storage is not None:
            secret = key_storage.add_key(storage, vault, key_id)
        else:
            if source == "passphrase" and passphrase is not None:
                check_passphrase(passphrase)
            secret = self._secret(vault, slot, passphrase)
        wrapping = bytearray(KEY_BYTES)
        try:
            check = _derive_wrapping_key(secret, slot, wrapping)
            sealed = seal(wrapping, page.buffer("vault"), slot.aad(vault))
        finally:
            wipe(wrapping)
            if secret is not passphrase:
                wipe(secret)
        return replace(slot, check=check, sealed=sealed)

    def _argon2(self, source: KeySource) -> Argon2 | None:
        if source != "passphrase":
            return None
        settings = self.settings
        return Argon2(settings.argon2_memory_kib, settings.argon2_passes, settings.argon2_lanes)

    def forget_others(self, vault: str, slot: KeySlot) -> None:
        """Remove all stored keys of the vault except the one that opens it."""
        for storage, key_id in self._current_keys(slot):
            key_storage.drop_others(storage, vault, key_id)

    def has_others(self, vault: str, slot: KeySlot) -> bool:
        """True if a rekey was killed before it removed old keys."""
        return any(
            key_storage.has_others(storage, vault, each)
            for storage, each in self._current_keys(slot)
        )

    def _current_keys(self, slot: KeySlot) -> list[tuple[KeyStorage, str]]:
        """The storages that may hold keys of the vault, each with the current key id there.

        Besides the vault's own storage only the file: a key ring may prompt a person each time.
        """
        storage, file = self.storage(slot.source), self.storage("file")
        own = [] if storage is None else [(storage, slot.key_id)]
        return own if file in (None, storage) else [*own, (file, "")]

    def forget_all(self, vault: str, source: KeySource) -> None:
        """After the vault got a key of another kind or in another storage."""
        storage = self.storage(source)
        if storage is not None:
            key_storage.drop_others(storage, vault, "")

    def is_weaker(self, slot: KeySlot) -> bool:
        """True if a guess costs less than the settings require now."""
        argon2 = slot.argon2
        return argon2 is not None and (
            argon2.memory_kib < self.settings.argon2_memory_kib
            or argon2.passes < self.settings.argon2_passes
        )


def check_passphrase(passphrase: bytearray) -> None:
    """For a new passphrase. Argon2id makes each guess costly; it cannot make a short one strong."""
    if not MIN_PASSPHRASE_BYTES <= len(passphrase) <= MAX_PASSPHRASE_BYTES:
        raise failures.bad_input(
            f"a passphrase has {MIN_PASSPHRASE_BYTES} to {MAX_PASSPHRASE_BYTES} bytes",
            hint="Use several unrelated words.",
            code="CW-VAULT-PASSPHRASE",
        )


def _derive_wrapping_key(secret: bytearray, slot: KeySlot, wrapping: bytearray) -> bytes:
    """Derive the wrapping key into its buffer; returns the key commitment."""
    root = bytearray(KEY_BYTES)
    try:
        if slot.argon2 is None:
            # Already random, so no slow hash; the salt makes each derived key different.
            extract_into(secret, slot.salt, root)
        else:
            _argon2id_into(secret, slot.salt, slot.argon2, root)
        derive_into(root, "wrap", wrapping)
        check = bytearray(CHECK_BYTES)
        derive_into(root, "check", check)
        return bytes(check)
    finally:
        wipe(root)


def _argon2id_into(secret: bytearray, salt: bytes, cost: Argon2, buffer: bytearray) -> None:
    """Uses the library's own context, since its simple calls copy passphrase and result."""
    from argon2.low_level import ARGON2_VERSION, Type, core, ffi

    if not secret:
        raise failures.wrong_key()
    password, out = ffi.from_buffer(secret), ffi.from_buffer(buffer)
    salted = ffi.from_buffer(salt)
    context = ffi.new(
        "argon2_context *",
        {
            "out": ffi.cast("uint8_t *", out),
            "outlen": len(buffer),
            "pwd": ffi.cast("uint8_t *", password),
            "pwdlen": len(secret),
            "salt": ffi.cast("uint8_t *", salted),
            "saltlen": len(salt),
            "t_cost": cost.passes,
            "m_cost": cost.memory_kib,
            "lanes": cost.lanes,
            "threads": cost.lanes,
            "version": ARGON2_VERSION,
            "allocate_cbk": ffi.NULL,
            "free_cbk": ffi.NULL,
            "flags": 0,
        },
    )
    code = core(context, Type.ID.value)
    if code != 0:
        raise failures.no_key(
            "the passphrase could not be hashed",
            hint="Check that there is as much free memory as [vault] argon2_memory_kib says.",
            detail=f"argon2: {code}",
        )


MIN_PRINTED_BYTES = 32
MAX_PRINTED_BYTES = 4096
_COMMAND_TIMEOUT_S = 60.0
_FIX_COMMAND = "Run the command of [vault] key_command by hand, and fix it."


def run_key_command(command: Sequence[str]) -> bytearray:
    """The key that a KMS client, a hardware token or a password manager prints, without one
    trailing newline; the caller wipes it."""
    if not command:
        raise failures.no_key(
            "no command that prints the key is configured",
            hint="Set [vault] key_command to the program and its arguments.",
        )
    try:
        process = subprocess.Popen(
            [operator_program(command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
    except ProgramRefused as refused:
        raise failures.no_key(
            f"the command that prints the key is not started: {refused.why}",
            hint=refused.hint,
            detail=refused.detail,
        ) from None
    except (OSError, ValueError) as error:
        raise failures.no_key(
            "the command that prints the key cannot be started",
            hint=_FIX_COMMAND,
            detail=str(error),
        ) from None
    buffer = bytearray(MAX_PRINTED_BYTES + 2)
    try:
        with process:
            try:
                length = _read_output(process, buffer, time.monotonic() + _COMMAND_TIMEOUT_S)
            finally:
                if process.poll() is None:
                    process.kill()
        return _check_output(buffer, length, process.returncode)
    finally:
        wipe(buffer)


def _read_output(process: subprocess.Popen[bytes], buffer: bytearray, deadline_s: float) -> int:
    """The number of bytes before end of file; bounded in size and time."""
    assert process.stdout is not None  # noqa: S101  # started with a pipe
    output, length = process.stdout.fileno(), 0
    while length < len(buffer):
        ready, _, _ = select.select([output], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise failures.no_key("the command that prints the key did not end", hint=_FIX_COMMAND)
        got = os.readv(output, [memoryview(buffer)[length:]])
        if got == 0:
            break
        length += got
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()) if length < len(buffer) else 0)
    except subprocess.TimeoutExpired:
        raise failures.no_key(
            "the command that prints the key did not end, or prints too much", hint=_FIX_COMMAND
        ) from None
    return length


def _check_output(buffer: bytearray, length: int, code: int | None) -> bytearray:
    if code != 0:
        raise failures.no_key(
            f"the command that prints the key ended with {code}", hint=_FIX_COMMAND
        )
    end = length - 1 if length and buffer[length - 1] == ord("\n") else length
    if not MIN_PRINTED_BYTES <= end <= MAX_PRINTED_BYTES:
        raise failures.no_key(
            f"the command printed no key of {MIN_PRINTED_BYTES} to {MAX_PRINTED_BYTES} bytes",
            hint="It must print a random key, for example 32 bytes in base64, and nothing else.",
        )
    return buffer[:end]
