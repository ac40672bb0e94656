"""The signing keys of a log. A key is announced by a record before its first signature.

The current key is noted beside the log. A different key, because the old one was lost or replaced
by hand, is announced as such: no signature of the old key confirms it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.audit import files
from cellwall.audit.checkpoints import key_lines, sign_statement
from cellwall.core.errors import KeyFailed
from cellwall.core.events import Event, EventKind
from cellwall.core.keys import SigningKey, load_key, make_key
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.types import Json, Principal

KEY_NAME = "cellwall-audit"
_SYSTEM = Principal("cellwall", "audit")
_IN_USE = "key"
_TRUSTED = "trusted-keys"
_RETIRED = "retired-keys"
_MAX_BYTES = 64 * 1024


class Signers:
    """The private key of a log and its successor during a rotation."""

    def __init__(self, directory: str, given: str | None, write: Callable[[Event], str]) -> None:
        self._directory = directory
        self._given = given
        self._path = given or os.path.join(os.path.dirname(directory), "keys", "audit.pem")
        self.write = write
        self._loaded: tuple[tuple[int, int], SigningKey] | None = None
        self._next: SigningKey | None = None
        self._next_given: str | None = None

    def first(self, folder: int) -> SigningKey:
        """For a new log; the key is created if there is none."""
        key = self._load()
        self._save_current(key, folder)
        self.trust(key.public, folder)
        return key

    def active_keys(self, folder: int) -> list[SigningKey]:
        """The keys that sign now; a key that is not known yet is announced first."""
        key = self._load()
        if str(key.public) != _read(_IN_USE, folder).strip():
            # Its signatures would make every verifier reject the log.
            if str(key.public) in _read(_RETIRED, folder).split("\n"):
                raise KeyFailed(
                    "the signing key was retired by a rotation",
                    hint="Name the new one in audit.signing_key.",
                )
            self._announce(key, "the key before it was lost or replaced", _SYSTEM)
            self._save_current(key, folder)
        return [key] if self._next is None else [key, self._next]

    def current(self) -> PublicKey:
        return self._load().public

    def sign_statement(self, lines: Sequence[str]) -> str:
        return sign_statement(lines, self._load())

    def known_keys(self, folder: int) -> list[PublicKey]:
        """All keys that ever signed for us, to check earlier signatures."""
        names = (_IN_USE, _TRUSTED, _RETIRED)
        return [*parse_keys("\n".join(_read(name, folder) for name in names)), self.current()]

    def announce(self, path: str | None, origin: str, who: Principal) -> PublicKey:
        """Announce the next key, from a file or newly created. The old key signs the record;
        from now on both keys sign checkpoints."""
        if path is None and self._given is not None:
            raise KeyFailed(
                "the signing key was given from outside",
                hint="Give the next one with --to FILE, then name it in audit.signing_key.",
            )
        try:
            key = make_key(self._next_path, KEY_NAME) if path is None else load_key(path, KEY_NAME)
        except FileNotFoundError:
            raise KeyFailed(
                "the next signing key is not there", hint="Give the file that holds it."
            ) from None
        note = sign_statement(key_lines(origin, key.public), self._load())
        self._announce(key, "rotation", who, note)
        self._next, self._next_given = key, path
        return key.public

    def adopt_next(self, folder: int) -> None:
        """Both keys have signed: only the next one signs from now on."""
        key, self._next = self._next, None
        if key is None:
            return
        retired = {*_read(_RETIRED, folder).split(), str(self._load().public)} - {str(key.public)}
        if self._next_given is None:
            os.rename(self._next_path, self._path)
        else:
            self._given = self._path = self._next_given
        self._save_current(key, folder)
        # The person who asked for the rotation has confirmed the key. Its record may be deleted by
        # retention one day.
        self.trust(key.public, folder)
        files.replace_file(_RETIRED, "".join(f"{each}\n" for each in retired).encode(), folder)

    def trusted(self) -> list[PublicKey]:
        return self._read_keys(_TRUSTED)

    def retired(self) -> list[PublicKey]:
        return self._read_keys(_RETIRED)

    def _read_keys(self, name: str) -> list[PublicKey]:
        folder = files.open_folder(self._directory)
        try:
            return parse_keys(_read(name, folder))
        finally:
            os.close(folder)

    def trust(self, key: PublicKey, folder: int) -> None:
        """Add a key to those our own verification starts with: the first key, and keys a person
        confirmed."""
        known = _read(_TRUSTED, folder)
        if str(key) not in known.split("\n"):
            files.replace_file(_TRUSTED, f"{known}{key}\n".encode(), folder)

    @property
    def _next_path(self) -> str:
        return f"{self._path}.next"

    def _announce(self, key: SigningKey, reason: str, who: Principal, note: str = "") -> None:
        body: dict[str, Json] = {"key": str(key.public), "reason": reason, "note": note}
        self.write(Event(EventKind.KEY, "", who.name, who.interface, body))

    def _save_current(self, key: SigningKey, folder: int) -> None:
        files.replace_file(_IN_USE, f"{key.public}\n".encode(), folder)

    def _load(self) -> SigningKey:
        try:
            status = os.stat(self._path)
            identity = status.st_ino, status.st_mtime_ns
            if self._loaded is None or self._loaded[0] != identity:
                self._loaded = identity, load_key(self._path, KEY_NAME)
            return self._loaded[1]
        except FileNotFoundError:
            if self._given is not None:
                raise KeyFailed(
                    "the signing key that the configuration names is not there",
                    hint="Put it back, or change audit.signing_key.",
                ) from None
        return make_key(self._path, KEY_NAME)


def parse_keys(text: str) -> list[PublicKey]:
    """Public keys, one per line."""
    try:
        return [PublicKey.parse(line) for line in text.split("\n") if line.strip()]
    except BadNote as problem:
        raise KeyFailed(
            f"a public key cannot be read: {problem}",
            hint="It has the form name+id+base64, as `cellwall audit key` prints it.",
        ) from None


def _read(name: str, folder: int) -> str:
    with suppress(FileNotFoundError):
        descriptor = files.open_private(name, os.O_RDONLY, folder)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace")
    return ""
