"""Sentences that order a model to disclose or send something, or press the reader to do so.

`find` looks for combinations of an order and its objects that ordinary sentences do not have.
`find_pressure` looks for urgency, an act and a secret in one sentence. Each of the three is
everyday language, in any order; together they push a reader, person or model, to hand something
over without thinking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cellwall.core.outcomes import Severity
from cellwall.guard.detect.scoring import SCORES
from cellwall.guard.detect.sweep import Span, Spot, Sweep, as_word
from cellwall.guard.normalise.offsets import merged
from cellwall.parsing.derived_cache import load_shipped_toml
from cellwall.parsing.matching import Pattern

_MAX_SENTENCE_BYTES = 400
_BEFORE_ORDER = b" \t\r\n.!?:;,>\"'([{#/*|_-"


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Things that a sentence does not speak of together unless it is an order to a model."""

    rule: str
    category: str
    severity: Severity
    parts: tuple[str, ...]
    """The first of them is the rarest: most sentences are done with after one look."""
    unless: str = ""


def _read() -> dict[str, Any]:
    file = resources.files("cellwall.guard.detect") / "orders.toml"
    return load_shipped_toml(file.read_text("utf-8"))


_DATA = _read()
_RARE, _GOODS, _CARRYING = (
    tuple(as_word(word) for word in _DATA["words"][name]) for name in ("rare", "goods", "carrying")
)
WORDS = (*_RARE, *_GOODS, *_CARRYING)
_ORDER = Pattern(_DATA["order"])
_ENDS = re.compile(rb"[.!?](?:[ \t\r\n\f\"')\]]|\Z)|\xe3\x80\x82|\n")
"""Of sentences. In the few hundred bytes around a place, where Python's own engine is the quicker
one."""
_PARTS: Mapping[str, Pattern] = {name: Pattern(text) for name, text in _DATA["parts"].items()}
_MIXTURES = tuple(
    _Mixture(**{**table, "parts": tuple(table["parts"])}) for table in _DATA["mixture"]
)
_GATE = Pattern(
    "|".join(
        f"(?:{_PARTS[name].source})"
        for name in dict.fromkeys(mixture.parts[0] for mixture in _MIXTURES)
    )
)
_MESSAGES = {
    "exfiltration": "asks for secrets, or for data of the user, to be passed on",
    "system-prompt": "asks for what a model was told, or told to keep",
    "injection": "gives an order to an assistant",
}


def find(sweep: Sweep) -> Iterator[Spot]:
    """Sentences that ask for something, and in which one of the mixtures stands."""
    last = 0
    for start, verb_end in _orders(sweep):
        if verb_end < last:
            continue
        begin, last = _sentence(sweep.data, verb_end)
        mixture = _mixture(sweep.data[begin:last])
        if mixture is not None:
            yield Spot(
                category=mixture.category,
                severity=mixture.severity,
                rule=mixture.rule,
                message=_MESSAGES[mixture.category],
                start=max(begin, start),
                end=last,
                score=SCORES[mixture.severity],
            )


def _orders(sweep: Sweep) -> Iterator[Span]:
    windows = sorted((*sweep.around(_RARE), *sweep.around(_GOODS, _CARRYING)))
    for window in merged(windows):
        for start, end in _ORDER.spans(sweep.data, *window):
            # From its first word on: whether it is quoted is told by what stands before it.
            yield end - len(sweep.data[start:end].lstrip(_BEFORE_ORDER)), end


def _mixture(sentence: bytes) -> _Mixture | None:
    if not _GATE.matches(sentence):
        return None
    seen: dict[str, bool] = {}

    def has(part: str) -> bool:
        if part not in seen:
            seen[part] = _PARTS[part].matches(sentence)
        return seen[part]

    for mixture in _MIXTURES:
        if all(map(has, mixture.parts)) and not (mixture.unless and has(mixture.unless)):
            return mixture
    return None


def _sentence(data: bytes, place: int) -> Span:
    begin = max(0, place - _MAX_SENTENCE_BYTES // 2)
    for end in _ENDS.finditer(data, begin, place):
        begin = end.end()
    stop = min(len(data), place + _MAX_SENTENCE_BYTES)
    last = _ENDS.search(data, place, stop)
    return begin, last.end() if last else stop


PRESSURE_WORDS = tuple(
    as_word(word)
    for word in (
        "urgent", "immediately", "right away", "right now", "asap", "at once", "emergency",
        "as soon as", "sofort", "dringend", "urgence", "immédiatement", "urgente",
        "inmediatamente", "imediatamente", "срочно", "немедленно", "立即", "紧急", "緊急", "至急",
        "直ちに", "즉시", "긴급", "فورا", "عاجل",
    )
)  # fmt: skip
_HURRY = Pattern("|".join(word.decode().replace(" ", r"[\s_*-]") for word in PRESSURE_WORDS))
_ACT = Pattern(
    r"\b(?:send|forward|transfer|upload|e-?mail|post|share|provide|submit|export|disclose|reveal|wire|"
    r"give|paste|reply with|sende|schicke|überweise|envoyez|envoie|envía|envíe|envie|transfira)\b"
    r"|отправ|перешли|переведи|发送|转发|发给|送信|転送|보내|전송|أرسل|حول"
)
_GOOD = Pattern(
    r"\b(?:api[ _-]?keys?|passwords?|passphrase|credentials?|secret keys?|private keys?|ssh keys?|"
    r"access tokens?|auth tokens?|recovery codes?|seed phrase|mnemonic|one-time code|2fa codes?|"
    r"verification code|card number|cvv|account number|bank details|gift cards?|bitcoin|btc|"
    r"passwort|passwörter|zugangsdaten|mots? de passe|identifiants|contraseñas?|credenciales|"
    r"senhas?)\b"
    r"|парол|ключ доступа|密码|密钥|凭据|口令|パスワード|認証情報|비밀번호|كلمة المرور|كلمات المرور"
)
_PRESSURE_ENDS = re.compile(rb"[.!?](?:[ \t\r\n\f]|\Z)|\xe3\x80\x82|\n")
"""Of sentences, looked for in a few hundred bytes, where Python's own engine is the quicker one."""
_REACH_BYTES = 300


def find_pressure(sweep: Sweep) -> Iterator[Spot]:
    """Sentences with all three."""
    last = 0
    for start, end in sweep.spans(_HURRY, PRESSURE_WORDS):
        if start < last:
            continue
        first, last = _sentence_around(sweep.data, start, end)
        if any(_ACT.spans(sweep.data, first, last)) and any(_GOOD.spans(sweep.data, first, last)):
            yield Spot(
                category="urgency",
                severity="medium",
                rule="urgency.secret",
                message="presses for a secret to be handed over",
                start=first,
                end=last,
                score=0.5,
            )


def _sentence_around(data: bytes, start: int, end: int) -> tuple[int, int]:
    begin = max(0, start - _REACH_BYTES)
    for before in _PRESSURE_ENDS.finditer(data, begin, start):
        begin = before.end()
    stop = min(len(data), end + _REACH_BYTES)
    after = _PRESSURE_ENDS.search(data, end, stop)
    return begin, after.start() if after else stop
