"""What has the shape of a credential, and how it is taken out of a text. Pure.

Defence in depth: it knows shapes. A password that looks like a word is not known to be one.
"""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import dataclass

BINARY = (bytes, bytearray, memoryview)
_LONGEST_SECRET_BYTES = 16 * 1024
_MAX_KEY_LINES = 1024
_WHOLE = sys.maxsize // 4
_KEY_HEADER = r"-----BEGIN (?P<key>[0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"

# What may stand before a credential although it ends in a letter: the escape of a quoted text or of
# an address, as in "\\nsk-", "\\u000ask-" and "%2Fsk-". It is asked for behind the beginning, since
# a shape that begins with a text of its own costs little to look for.
_ESCAPES = (r"\\[bfnrt]", r"\\x[0-9A-Fa-f]{2}", r"\\u[0-9A-Fa-f]{4}", r"%[0-9A-Fa-f]{2}")


def _not_after(letters: str, beginning: str) -> str:
    after_escape = "|".join(f"(?<={escape}{beginning})" for escape in _ESCAPES)
    return f"{beginning}(?:(?<!{letters}{beginning})|{after_escape})"


# Shapes that are credentials and next to nothing else. Where a shape has a group, only that is the
# credential, and what stands around it is kept. Of a private key it is only the header: its end is
# looked for by itself. Nothing here is repeated without a bound, and nothing can be read in two
# ways. A JWT begins where no letter of one stands before it, or a row of beginnings would cost
# minutes.
_SECRETS = re.compile(
    rf"{_KEY_HEADER}"
    rf"|{_not_after('[A-Z]', 'A[KS]IA')}[0-9A-Z]{{16}}(?![0-9A-Z])"
    r"|gh[pousr]_[0-9A-Za-z]{36,255}"
    r"|github_pat_[0-9A-Za-z_]{22,255}"
    r"|glpat-[0-9A-Za-z_-]{20,255}"
    rf"|{_not_after('[A-Za-z]', 'sk-')}[0-9A-Za-z_-]{{20,255}}"
    r"|[rs]k_(?:live|test)_[0-9A-Za-z]{16,255}"
    r"|xox[abprs]-[0-9A-Za-z-]{10,255}"
    r"|xapp-[0-9A-Za-z-]{10,255}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|GOCSPX-[0-9A-Za-z_-]{20,255}"
    r"|ya29\.[0-9A-Za-z._-]{20,4000}"
    r"|npm_[0-9A-Za-z]{36}"
    r"|pypi-[0-9A-Za-z_-]{50,1000}"
    r"|hf_[0-9A-Za-z]{30,255}"
    r"|SG\.[0-9A-Za-z_-]{16,255}\.[0-9A-Za-z_-]{16,255}"
    r"|do[opr]_v1_[0-9A-Za-z]{32,255}"
    r"|[Aa](?i:ge-secret-key-(?:pq-)?1[0-9a-z]{40,4000})"
    rf"|{_not_after('[0-9A-Za-z_-]', 'eyJ')}"
    r"[0-9A-Za-z_-]{10,4000}\.eyJ[0-9A-Za-z_-]{10,8000}\.[0-9A-Za-z_-]{10,4000}"
    r"|[Aa](?i:uthorization[\\\"'\s:=,]{1,12}(?:basic|bearer)\s{1,4})([0-9A-Za-z._~+/=-]{6,8000})"
    # Without the name of the header it is a word like any other: a token is long or has a digit.
    r"|[Bb](?i:earer)(?:[\s:=+]|%20){1,4}"
    r"((?=[A-Za-z._~+/-]{0,64}[0-9])[0-9A-Za-z._~+/-]{12,8000}={0,2}|[A-Za-z]{24,8000})"
    r"|[Bb](?i:asic)(?:\s|%20){1,4}(?P<basic>[0-9A-Za-z+/]{8,1000}={0,2})"
    r"|://[^\s/?#:@\"'<>]{0,255}:([^\s/?#\"'<>]{1,1000})@"
    r"|[Ss](?i:ecret[_ -]?access[_ -]?key)[\\\"'\s:=,]{1,12}"
    r"((?:[0-9A-Za-z+/]|\\{1,3}/){16,255}={0,2})"
)
_SECRET_NAMES = ("secret_access_key", "secretaccesskey")
_find_github_sign = re.compile("gh[pousr]_").search
_find_key = re.compile(_KEY_HEADER).search
_is_named_secret = re.compile(r"\s{0,9}[0-9A-Za-z+/=]{16,255}\s{0,9}").fullmatch


def without_secrets(text: str) -> str:
    """The text with a marker in the place of everything that has the shape of a credential."""
    return with_clean_start(text, _WHOLE)


def may_hold_secrets(text: str) -> bool:
    """Whether it holds the beginning of a shape. Every shape must have one here."""
    # Looking for a text is many times quicker than looking for a shape, and mostly there is none.
    # Spelled out, since a loop costs half as much again; and where several share a character that
    # few texts have, one look at that stands for all of them.
    return (
        ("sk-" in text or "k_live_" in text or "k_test_" in text or "hf_" in text)
        or ("xox" in text or "xapp-" in text or "npm_" in text or "pypi-" in text)
        or ("github_pat_" in text or "glpat-" in text or "ya29." in text or "_v1_" in text)
        or ("earer" in text or "asic" in text or "ecret" in text)
        or ("gh" in text and _find_github_sign(text) is not None)
        or ("I" in text and ("AKIA" in text or "ASIA" in text or "AIza" in text))
        or ("I" in text and ("PRIVATE KEY" in text or "ASIC" in text))
        or ("R" in text and ("ECRET" in text or "EARER" in text))
        or ("G" in text and ("GOCSPX-" in text or "SG." in text))
        or ("J" in text and "eyJ" in text)
        or ("@" in text and "://" in text)
    )


def _redacted(length: int) -> str:
    # No digest: a weak credential could be guessed from it.
    return f"[redacted: {length} characters]"


def _span(found: re.Match[str], text: str) -> tuple[int, int]:
    """From where to where the credential goes; nowhere if it is none after all."""
    start, end = found.span(found.lastindex or 0)
    if found.lastgroup == "key":
        # Quotes, commas and line ends are how keys stand in source code, and end nothing.
        return found.start(), _end_of_key(text, _key_end(found), found.end())
    if found.lastgroup == "basic" and not _is_name_and_password(found["basic"]):
        return start, start
    return start, end


def _key_end(header: re.Match[str]) -> str:
    return f"-----END {header['key']}-----"


def _end_of_key(text: str, key_end: str, start: int = 0) -> int:
    at = text.find(key_end, start)
    return len(text) if at < 0 else at + len(key_end)


def _is_name_and_password(token: str) -> bool:
    token = token.rstrip("=")
    try:
        return b":" in base64.b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return False


def with_clean_start(text: str, length: int) -> str:
    """The text without the secrets that begin in its first `length` characters, counted without
    them: what is taken out makes room for what follows."""
    if not may_hold_secrets(text):
        return text
    parts: list[str] = []
    at = 0
    while at < len(text) and length > 0:
        found = _SECRETS.search(text, at, at + length + _LONGEST_SECRET_BYTES)
        if found is None or found.start() >= at + length:
            break
        start, end = _span(found, text)
        parts += [text[at:start], _redacted(end - start) if start < end else ""]
        length -= len(parts[-2]) + len(parts[-1])
        at = end
    return "".join([*parts, text[at:]])


@dataclass(slots=True)
class LineCleaner:
    """Takes out what is a credential only together with the texts before it in a sequence: a key
    as a list of its lines, or a name and then its value."""

    before: str = ""
    key_end: str = ""
    key_lines: int = 0

    def clean(self, value: object) -> object:
        if isinstance(value, BINARY):
            data = bytes(value)
            text = data.decode("latin-1")
            clean = self._clean_text(text)
            return data if clean == text else clean.encode("latin-1")
        return self._clean_text(value) if isinstance(value, str) else value

    def _clean_text(self, text: str) -> str:
        value, self.before = without_named_secret(self.before, text), text[-64:]
        start = 0
        if self.key_end:
            start = _end_of_key(text, self.key_end)
            value = (_redacted(start) if start else "") + text[start:]
            # Bounded, or the mere header of a key would hide all the rest of an action.
            self.key_lines += 1
            if self.key_lines >= _MAX_KEY_LINES or text.endswith(self.key_end, 0, start):
                self.key_end = ""
        self._look_for_open_key(text, start)
        return value

    def _look_for_open_key(self, text: str, start: int) -> None:
        if "PRIVATE KEY" not in text:
            return
        while found := _find_key(text, start):
            self.key_end, self.key_lines = _key_end(found), 0
            start = _end_of_key(text, self.key_end, found.end())
            if text.endswith(self.key_end, found.end(), start):
                self.key_end = ""


def without_named_secret(name: str, value: str) -> str:
    """The value, unless its name says that it is a secret: its shape alone says nothing."""
    name = name[-64:].rstrip(" :=\"'").lower().replace("-", "_")
    is_secret = name.endswith(_SECRET_NAMES) and _is_named_secret(value)
    return _redacted(len(value)) if is_secret else value
