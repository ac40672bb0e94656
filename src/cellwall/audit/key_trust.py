"""Which keys are trusted at a place of a log: given ones, and those that a trusted key vouches for.

A new key is trusted if a trusted key signed its announcement, and a checkpoint over that
announcement bears both signatures. The old key is retired at the first checkpoint that the new key
signs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellwall.audit.merkle import Checkpoint, check_statement, open_checkpoint
from cellwall.core.notes import PublicKey


class UntrustedCheckpoint(Exception):
    """A checkpoint of another log, or signed by no key that is trusted at its place."""

    def __init__(self, problem: str, record: int | None = None) -> None:
        self.record = record
        """The record that announced the key; None where the checkpoint itself is the problem."""
        super().__init__(problem)


class KeyTrust:
    """Changes as the log is read."""

    def __init__(self, keys: Sequence[PublicKey]) -> None:
        self.trusted = list(keys)
        self.signers: dict[str, None] = {}
        """The keys that signed, in the order of their first signature."""
        self._announced: dict[PublicKey, tuple[int, bool]] = {}
        self._retired: list[PublicKey] = []

    def announce(self, key: PublicKey, record: int) -> None:
        """A key that no earlier key confirms: trusted only if it was given."""
        self._announced[key] = record, False

    def rotate(self, key: PublicKey, record: int, note: object, lines: Sequence[str]) -> None:
        """A key that replaces another; raises `BadNote` unless a trusted key signed these lines."""
        check_statement(note, lines, self.trusted)
        self._retired = [each for each in self._retired if each != key]
        self._announced[key] = record, True

    def open(self, note: bytes, origin: str | None) -> Checkpoint:
        """The checkpoint in a note, if trusted keys signed it and it is of this log (None: of any).

        Else `BadNote` or `UntrustedCheckpoint`.
        """
        checkpoint, signed = open_checkpoint(
            note, [*self.trusted, *self._announced, *self._retired]
        )
        # The old key signed the record that announces the new one; see `rotate`.
        rotated = [
            key
            for key in signed
            if self._announced.get(key, (0, False))[1] and key not in self._retired
        ]
        vouching = [key for key in signed if key in self.trusted or key in rotated]
        if not vouching and signed[0] in self._retired:
            raise UntrustedCheckpoint(
                "the checkpoint after it is signed with a key that was retired"
            )
        if not vouching:
            begun, _ = self._announced[signed[0]]
            raise UntrustedCheckpoint(
                "a key was announced that no earlier key confirms; "
                "if it is yours, give it with --key",
                begun,
            )
        if origin not in (None, checkpoint.origin):
            raise UntrustedCheckpoint("the checkpoint after it is of another log")
        self.trusted += [key for key in rotated if key not in self.trusted]
        # Not while both sign: a crash during a rotation leaves the old key in use.
        if rotated == list(signed):
            old = [key for key in self.trusted if str(key) in self.signers and key not in signed]
            self.trusted = [key for key in self.trusted if key not in old]
            self._retired += old
        self.signers.update(dict.fromkeys(map(str, signed)))
        return checkpoint
