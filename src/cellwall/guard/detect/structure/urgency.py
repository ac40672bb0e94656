"""Hurry, an act, and a secret or a way out, in one sentence: the shape of pressure.

Each of the three is everyday language, in any order; together they push a reader, person or model,
to hand something over before it thinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cellwall.guard.detect.spots import Spot
from cellwall.guard.detect.sweep import Sweep, as_word
from cellwall.parsing.matching import Pattern

WORDS = tuple(
    as_word(word)
    for word in (
        "urgent", "immediately", "right away", "right now", "asap", "at once", "emergency",
        "as soon as", "sofort", "dringend", "urgence", "immédiatement", "urgente",
        "inmediatamente", "imediatamente", "срочно", "немедленно", "立即", "紧急", "緊急", "至急",
        "直ちに", "즉시", "긴급", "فورا", "عاجل",
    )
)  # fmt: skip
_HURRY = Pattern("|".join(word.decode().replace(" ", r"[\s_*-]") for word in WORDS))
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
_ENDS = re.compile(rb"[.!?](?:[ \t\r\n\f]|\Z)|\xe3\x80\x82|\n")
"""Of sentences, looked for in a few hundred bytes, where Python's own engine is the quicker one."""
_REACH_BYTES = 300


def find(sweep: Sweep) -> Iterator[Spot]:
    """Sentences with all three."""
    last = 0
    for start, end in sweep.spans(_HURRY, WORDS):
        if start < last:
            continue
        first, last = _sentence(sweep.data, start, end)
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


def _sentence(data: bytes, start: int, end: int) -> tuple[int, int]:
    begin = max(0, start - _REACH_BYTES)
    for before in _ENDS.finditer(data, begin, start):
        begin = before.end()
    stop = min(len(data), end + _REACH_BYTES)
    after = _ENDS.search(data, end, stop)
    return begin, after.start() if after else stop
