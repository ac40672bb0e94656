"""The signing keys of a log. A key is announced by a record before its first signature.

The current key is noted beside the log. A different key, because the old one was lost or replaced
by hand, is announced as such: no signature of the old key confirms it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from cellwall.audit import files
from cellwall.audit.files import closing_fd
from cellwall.audit.merkle import key_lines, sign_statement
from cellwall.core.errors import KeyFailed
from cellwall.core.keys import SigningKey, load_key, make_key
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json, Principal

KEY_NAME = "cellwall-audit"
_SYSTEM = Principal("cellwall", "audit")
_IN_USE = "key"
_TRUSTED = "trusted-keys"
_RETIRED = "retired-keys"
_MAX_BYTES = 64 * 1024


class Signers:
    """The private key of a log and its successor during a rotation."""

    def __init__(
        self, directory: str, configured: str | None, write: Callable[[Event], str]
    ) -> None:
        self._directory = directory
        self._configured = configured
        self._path = configured or os.path.join(os.path.dirname(directory), "keys", "audit.pem")
        self.write = write
        self._loaded: tuple[tuple[int, int], SigningKey] | None = None
        self._next: SigningKey | None = None
        self._next_configured: str | None = None

    def first(self) -> PublicKey:
        """For a new log; the key is created if there is none."""
        key = self.current()
        self._write_keys(_IN_USE, [key])
        self.trust(key)
        return key

    def active_keys(self) -> list[SigningKey]:
        """The keys that sign now; a key that is not known yet is announced first."""
        key = self._load()
        if self._read_keys(_IN_USE) != [key.public]:
            # Its signatures would make every verifier reject the log.
            if key.public in self._read_keys(_RETIRED):
                raise KeyFailed(
                    "the signing key was retired by a rotation",
                    hint="Name the new one in audit.signing_key.",
                )
            self._announce(key, "the key before it was lost or replaced", _SYSTEM)
            self._write_keys(_IN_USE, [key.public])
        return [key] if self._next is None else [key, self._next]

    def current(self) -> PublicKey:
        return self._load().public

    def sign_statement(self, lines: Sequence[str]) -> str:
        return sign_statement(lines, self._load())

    def known_keys(self) -> list[PublicKey]:
        """All keys that ever signed for us, to check earlier signatures."""
        names = (_IN_USE, _TRUSTED, _RETIRED)
        return [*(key for name in names for key in self._read_keys(name)), self.current()]

    def announce(self, path: str | None, origin: str, who: Principal) -> PublicKey:
        """Announce the next key, from a file or newly created. The old key signs the record;
        from now on both keys sign checkpoints."""
        if path is None and self._configured is not None:
            raise KeyFailed(
                "the signing key was given from outside",
                hint="Give the next one with --to FILE, then name it in audit.signing_key.",
            )
        try:
            key = make_key(self._next_path, KEY_NAME) if path is None else load_key(path, KEY_NAME)
        except FileNotFoundError:
            raise KeyFailed(
                "the next signing key does not exist", hint="Give the file that holds it."
            ) from None
        note = sign_statement(key_lines(origin, key.public), self._load())
        self._announce(key, "rotation", who, note)
        self._next, self._next_configured = key, path
        return key.public

    def adopt_next(self) -> None:
        """Both keys have signed: only the next one signs from now on."""
        key, self._next = self._next, None
        if key is None:
            return
        retired = {*self._read_keys(_RETIRED), self.current()} - {key.public}
        if self._next_configured is None:
            os.rename(self._next_path, self._path)
        else:
            self._configured = self._path = self._next_configured
        self._write_keys(_IN_USE, [key.public])
        # The person who asked for the rotation has confirmed the key. Its record may be deleted by
        # retention one day.
        self.trust(key.public)
        self._write_keys(_RETIRED, retired)

    def trusted(self) -> list[PublicKey]:
        """The keys with which this user's own verification starts; see `verify`."""
        return self._read_keys(_TRUSTED)

    def trust(self, key: PublicKey) -> None:
        """Add a key to those our own verification starts with: the first key, and keys a person
        confirmed."""
        known = self._read_keys(_TRUSTED)
        if key not in known:
            self._write_keys(_TRUSTED, [*known, key])

    def _read_keys(self, name: str) -> list[PublicKey]:
        """The keys in a file beside the log; none if the file is missing."""
        with (
            suppress(FileNotFoundError),
            closing_fd(files.open_folder(self._directory)) as folder,
            closing_fd(files.open_private(name, os.O_RDONLY, folder)) as file,
        ):
            return parse_keys(os.pread(file, _MAX_BYTES, 0).decode("ascii", "replace"))
        return []

    def _write_keys(self, name: str, keys: Iterable[PublicKey]) -> None:
        with closing_fd(files.open_folder(self._directory)) as folder:
            files.replace_file(name, "".join(f"{key}\n" for key in keys).encode(), folder)

    @property
    def _next_path(self) -> str:
        return f"{self._path}.next"

    def _announce(self, key: SigningKey, reason: str, who: Principal, note: str = "") -> None:
        body: dict[str, Json] = {"key": str(key.public), "reason": reason, "note": note}
        self.write(Event(EventKind.KEY, "", who.name, who.interface, body))

    def _load(self) -> SigningKey:
        try:
            status = os.stat(self._path)
            identity = status.st_ino, status.st_mtime_ns
            if self._loaded is None or self._loaded[0] != identity:
                self._loaded = identity, load_key(self._path, KEY_NAME)
            return self._loaded[1]
        except FileNotFoundError:
            if self._configured is not None:
                raise KeyFailed(
                    "the signing key that the configuration names does not exist",
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
