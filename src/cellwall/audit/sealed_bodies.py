"""Bodies sealed under the key of their session (FS-5).

    {"key":"0000002a-…","sealed":"BASE64","status":"denied","verdict":"deny"}

Everything that comes from an agent, a user or the network is in `sealed`. In clear stay the names
beside the body (ids, time, kind, principal, interface), and of the body a verdict, a status, an
error code, a limit and the kind of the action, where each is one short word: searches, alerts and
severities need them without a key, also after the session was erased. The associated data binds
the ciphertext to the id and kind of its record, its action and session, and these words; the chain
binds the id to its number.

The log's own records stay in clear: the verifier and retention read them, without any key.
"""

from __future__ import annotations

import base64
import json
import re
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cellwall.audit.records import SEALED_VERSION, BadRecord, match_tail, record_line
from cellwall.core.errors import SEALED_CODES, AuditFailed, VaultError
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import SessionKeysPort

CLEAR_KINDS: Final = frozenset(
    kind.value
    for kind in (
        EventKind.BEGIN,
        EventKind.KEY,
        EventKind.RECOVERY,
        EventKind.SEAL,
        EventKind.RETENTION,
        EventKind.HOLD,
        EventKind.WITNESS,
        EventKind.ERASURE,
    )
)
_WORDS = ("action_kind", "error_code", "limit", "status")
_AAD = "cellwall.audit/3 "
_SHARED = "log"
"""Names the key of records that belong to no session and no action, such as the configuration."""
# As `seal_body` spells a line: the words in clear stand before, between and behind the two fields.
_SEALED_LINE = re.compile(
    rb'\{"action_id":("(?:[^"\\]|\\.)*+"),"body":'
    rb'\{((?:"(?:action_kind|error_code)":"[0-9A-Za-z_-]++",)*)"key":"([0-9a-f-]++)"'
    rb'((?:,"limit":"[0-9A-Za-z_-]++")?),"sealed":"([0-9A-Za-z+/=]++)"'
    rb'((?:,"(?:status|verdict)":"[0-9A-Za-z_-]++")*)\}'
)
_is_word = re.compile(r"[A-Za-z][0-9A-Za-z_-]{0,39}").fullmatch
_quote = json.encoder.encode_basestring_ascii


def seal_body(keys: SessionKeysPort, event: Event, names: str, body: str) -> str:
    """The sealed body, encoded. `names` are the quoted names that identify the record."""
    words = _spelled(tuple(_clear_words(event.body)))
    subject = event.session_id or event.action_id or _SHARED
    try:
        key, sealed = keys.seal(subject, body.encode("ascii"), _aad(names, words.clear))
    except VaultError as error:  # nothing is written in clear instead: the action is refused
        raise AuditFailed(
            error.message, hint=error.hint, code=error.code, detail=error.detail
        ) from None
    text = b2a_base64(sealed, newline=False).decode("ascii")
    return f'{{{words.before}"key":"{key}"{words.between},"sealed":"{text}"{words.after}}}'


def open_record(keys: SessionKeysPort, record: dict[str, Any]) -> dict[str, Any]:
    """The record with its body decrypted. A body that cannot be read becomes
    `{"sealed": "erased"}`, or `locked` or `damaged`, beside the words in clear."""
    body = record["body"]
    words = [(name, str(body[name])) for name in sorted(body) if name not in ("key", "sealed")]
    clear = "".join([f',"{name}":"{word}"' for name, word in words])
    names = ",".join(_quote(record[name]) for name in ("id", "kind", "action_id", "session_id"))
    try:
        sealed = base64.b64decode(body["sealed"], validate=True)
        plain = json.loads(keys.unseal(body["key"], sealed, _aad(names, clear)))
    except VaultError as error:
        return record | {"body": {"sealed": SEALED_CODES.get(error.code, "locked"), **dict(words)}}
    except (ValueError, RecursionError):
        return record | {"body": {"sealed": "damaged", **dict(words)}}
    return record | {"body": plain}


class OpenedLine(NamedTuple):
    """A line with its body decrypted, as `opened_line` spells it, its key and its number."""

    line: bytes
    key: str
    seq: int


def open_line(keys: SessionKeysPort, line: bytes) -> OpenedLine | None:
    """The line opened without parsing its record, which takes a fifth of the time. None where the
    body is not sealed or cannot be read, or the line is not spelled as expected."""
    found = _SEALED_LINE.match(line)
    if found is None:
        return None
    try:
        tail = match_tail(line)
        if tail.start() + 1 != found.end():  # both have the brace behind the body
            return None
        before, limit, after = found[2], found[4], found[6]
        clear = (b"," + before[:-1] if before else b"") + limit + after
        aad = b'%b"%b","%b",%b,"%b"%b' % (_AAD.encode(), tail[1], tail[3], found[1], tail[7], clear)
        key = found[3].decode("ascii")
        plain = keys.unseal(key, a2b_base64(found[5], strict_mode=True), aad)
    except (VaultError, BadRecord, ValueError):
        return None
    opened = b'{"action_id":%b,"body":%b%b' % (found[1], plain, line[found.end() :])
    return OpenedLine(opened, key, int(tail[6]))


def is_locked(record: dict[str, Any]) -> bool:
    """Whether `open_record` found the vault locked."""
    return bool(record["v"] == SEALED_VERSION and record["body"].get("sealed") == "locked")


def opened_line(record: dict[str, Any]) -> bytes:
    """The line of a record as it would be with its decrypted body; its hash is not in the chain."""
    body = json.dumps(record["body"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return record_line(
        record,
        body=body,
        seq=record["seq"],
        time=record["time"],
        prev=record["prev"],
        version=record["v"],
    )


def clear_words(record: dict[str, Any]) -> dict[str, str]:
    """The words of any record that need no key: of a sealed one those beside the ciphertext."""
    body = record["body"]
    if record["v"] != SEALED_VERSION:
        return dict(_clear_words(body))
    return {name: str(body[name]) for name in body if name not in ("key", "sealed")}


def _clear_words(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Sorted by name. Never `code`, which may be what an agent wrote."""
    decision = body.get("decision")
    verdict = decision.get("verdict") if isinstance(decision, dict) else body.get("verdict")
    found = [(name, body.get(name)) for name in _WORDS]
    found.append(("verdict", verdict))
    return [(name, word) for name, word in found if type(word) is str and _is_word(word)]


class _SpelledWords(NamedTuple):
    """The words in clear as JSON: all, and those before, between and behind the two fields."""

    clear: str
    before: str
    between: str
    after: str


@lru_cache(maxsize=1024)
def _spelled(words: tuple[tuple[str, str], ...]) -> _SpelledWords:
    """Cached: the same few words recur, on the path of every record."""
    clear = [(name, f'"{name}":"{word}"') for name, word in words]
    return _SpelledWords(
        clear="".join([f",{text}" for _, text in clear]),
        before="".join([f"{text}," for name, text in clear if name < "key"]),
        between="".join([f",{text}" for name, text in clear if "key" < name < "sealed"]),
        after="".join([f",{text}" for name, text in clear if name > "sealed"]),
    )


def _aad(names: str, clear: str) -> bytes:
    return f"{_AAD}{names}{clear}".encode("ascii")
