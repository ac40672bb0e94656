"""Redacts credentials in the texts of a record. Pure.

The rules are those of the guard and the egress proxy (`parsing.credentials`, GRD-11). Only a record
has texts that belong together: a private key as a list of lines, an option name and then its value.

Defence in depth: the rules know formats and names. A password that is an ordinary word and has no
name beside it is not recognised.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.parsing.credentials.text_scan import may_hold, named_as_secret, spans_of

BINARY = (bytes, bytearray, memoryview)
_LOOKAHEAD_CHARACTERS = 64 * 1024
"""Characters scanned beyond those that are kept: redaction shortens the text, so later ones move
up."""
_MAX_KEY_LINES = 1024
_WHOLE = sys.maxsize // 4
_KEY_HEADER = r"-----BEGIN (?P<key>[0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
_SECRET_NAMES = ("secret_access_key", "secretaccesskey")
_find_key = re.compile(_KEY_HEADER).search
_is_named_secret = re.compile(r"\s{0,9}[0-9A-Za-z+/=]{16,255}\s{0,9}").fullmatch


def redact_text(text: str) -> str:
    """The text with a marker in place of every credential."""
    return redact_start(text, _WHOLE)


def may_hold_secrets(text: str) -> bool:
    """True if the text contains a keyword that every credential rule requires."""
    return may_hold(text) or "PRIVATE KEY" in text


def _redaction_marker(length: int) -> str:
    # No digest: a weak credential could be guessed from it.
    return f"[redacted: {length} characters]"


def _key_end(header: re.Match[str]) -> str:
    return f"-----END {header['key']}-----"


def _end_of_key(text: str, key_end: str, start: int = 0) -> int:
    at = text.find(key_end, start)
    return len(text) if at < 0 else at + len(key_end)


def redact_start(text: str, length: int) -> str:
    """The text with credentials redacted that begin in its first `length` characters, counted
    after redaction: a marker is shorter than the credential, so later text moves up."""
    if not may_hold_secrets(text):
        return text
    parts: list[str] = []
    at = kept = 0
    while at < len(text) and kept < length:
        window = text[at : at + length - kept + _LOOKAHEAD_CHARACTERS]
        is_last = at + len(window) == len(text)
        done = 0
        for start, end in _credential_spans(window):
            if kept + start - done >= length:
                return "".join([*parts, text[at + done :]])
            parts.append(window[done:start])
            kept += start - done
            done = start
            if end == len(window) and not is_last:
                break  # its end lies beyond the window
            parts.append(_redaction_marker(end - start))
            kept += len(parts[-1])
            done = end
        else:
            if is_last or kept + len(window) - done >= length:
                return "".join([*parts, text[at + done :]])
        if not done:  # longer than the window
            return "".join([*parts, _redaction_marker(len(text) - at)])
        at += done  # redaction shortened the text: scan what moved up
    return "".join([*parts, text[at:]])


def _credential_spans(text: str) -> Iterator[tuple[int, int]]:
    """The (start, end) spans of credentials; overlapping spans are merged."""
    found = [(start, end) for start, end, _ in spans_of(text)]
    first = last = -1
    for start, end in sorted([*found, *_private_key_spans(text)]):
        if start >= last:
            if last > first:
                yield first, last
            first, last = start, end
        else:
            last = max(last, end)
    if last > first:
        yield first, last


def _private_key_spans(text: str) -> Iterator[tuple[int, int]]:
    # In source code, keys contain quotes, commas and line ends; these do not end the key.
    at = 0
    while found := _find_key(text, at):
        at = _end_of_key(text, _key_end(found), found.end())
        yield found.start(), at


@dataclass(slots=True)
class SequenceRedactor:
    """Redacts texts that are credentials only together with earlier texts of a sequence: a key
    as a list of lines, or a name followed by its value."""

    before: str = ""
    key_end: str = ""
    key_lines: int = 0

    def redact(self, value: object) -> object:
        if isinstance(value, BINARY):
            data = bytes(value)
            text = data.decode("latin-1")
            clean = self._redact_text(text)
            return data if clean == text else clean.encode("latin-1")
        return self._redact_text(value) if isinstance(value, str) else value

    def _redact_text(self, text: str) -> str:
        value, self.before = self._redact_named(text), text[-64:]
        start = 0
        if self.key_end:
            start = _end_of_key(text, self.key_end)
            value = (_redaction_marker(start) if start else "") + text[start:]
            # Bounded, otherwise a bare key header would hide the rest of an action.
            self.key_lines += 1
            if self.key_lines >= _MAX_KEY_LINES or text.endswith(self.key_end, 0, start):
                self.key_end = ""
        self._find_open_key(text, start)
        return value

    def _redact_named(self, text: str) -> str:
        # Command arguments: an option followed by its value. Other texts do not name the next one.
        if self.before.startswith("-") or "access" in self.before.lower():
            return redact_named_value(self.before, text)
        return text

    def _find_open_key(self, text: str, start: int) -> None:
        if "PRIVATE KEY" not in text:
            return
        while found := _find_key(text, start):
            self.key_end, self.key_lines = _key_end(found), 0
            start = _end_of_key(text, self.key_end, found.end())
            if text.endswith(self.key_end, found.end(), start):
                self.key_end = ""


def redact_named_value(name: str, value: str, *, is_ours: bool = False) -> str:
    """The value, unless its name marks it as a secret: the format alone would not tell."""
    plain = name[-64:].rstrip(" :=\"'").lower().replace("-", "_")
    if plain.endswith(_SECRET_NAMES) and _is_named_secret(value):
        return _redaction_marker(len(value))
    if is_ours or not named_as_secret(name, value):
        return value
    return _redaction_marker(len(value))
