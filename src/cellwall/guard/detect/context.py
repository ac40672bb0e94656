"""What stands around a finding: text about attacks quotes them, and some ways lead out.

(1) A quoted example in a text that speaks about attacks goes down by one step. By one only: whoever
    attacks can write quotes and the word "jailbreak" too, and then still meets what is done about
    a medium finding (GRD-3).
(2) An instruction beside an order to carry something out of the house, or to lay hands on a secret,
    goes up to critical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cellwall.core.outcomes import Severity
from cellwall.guard.detect.categories import SCORES, raised, rank
from cellwall.guard.detect.spots import Spot
from cellwall.guard.detect.sweep import Sweep, as_word
from cellwall.parsing.matching import Pattern

ABOUT = tuple(
    as_word(word)
    for word in (
        "prompt injection",
        "prompt-injection",
        "prompt_injection",
        "jailbreak",
        "red team",
        "red-team",
        "adversarial",
        "injection attack",
        "malicious instruction",
        "malicious prompt",
        "attack prompt",
        "guardrail",
        "owasp",
        "classifier",
        "detector",
        "payload",
        "llm security",
        "ai safety",
        "attacker",
    )
)
"""Words of people who write about attacks. Two different ones make a text that is about them."""

# What a sighting becomes beside a way out, and how strong it must be itself. A call in JSON with an
# address in it is what many programs write; it is not blocked for that.
_RAISED: Mapping[str, tuple[Severity, Severity]] = {
    "injection": ("medium", "critical"),
    "jailbreak": ("medium", "critical"),
    "system-prompt": ("medium", "critical"),
    "delimiter": ("medium", "critical"),
    "role-marker": ("medium", "critical"),
    "exfiltration": ("high", "critical"),
    "tool-call": ("medium", "high"),
}
_QUOTES = (b'"', b"`", b"'", "“".encode(), "„".encode(), "«".encode(), "「".encode(), "『".encode())
_LINE_BYTES = 300
_NEAR_BYTES = 400
_ACTS = (
    r"(?:send|post|upload|forward|transmit|exfiltrat|submit|e-?mail|leak|append|curl|wget|publish|"
    r"copy|deliver|report|share|put|include|embed|encode|paste|transfer|"
    r"schick|sende|envoi|envoy|env[ií]|отправ|发送|發送|送信|보내|전송|أرسل|ارسل)"
)
_WAYS = (
    r"(?:https?://|ftp://|\bwww\.|[\w.+-]{2,40}@[\w-]{2,40}\.[a-z]{2,}|webhook|\bngrok\b|pastebin|"
    r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|\battacker|external (?:server|host|address|endpoint))"
)
_SECRETS = (
    r"(?:api[ _-]?keys?\b|passw(?:or)?d|passwort|credential|\bsecrets?\b|access[ _-]?token|"
    r"auth[ _-]?token|private[ _-]key|ssh[ _-]key|id_rsa|id_ed25519|\.env\b|\.aws/|\.ssh/|"
    r"/etc/(?:passwd|shadow)|environment variables?|chat history|conversation (?:history|so far)|"
    r"(?:this|entire|whole|full|our) conversation|contraseña|mot de passe|senha|парол|密码|密碼|"
    r"密钥|パスワード|비밀번호|كلمة المرور)"
)
_SHOWS = r"(?:print|reveal|output|show|dump|disclose|expose|tell|give|read|cat |steal|extract)"
# An act and its object within one sentence; an address that merely stands there is no way out.
_WAY_OUT = Pattern(
    rf"{_SHOWS}[^\n.。]{{0,60}}{_SECRETS}|"
    rf"{_ACTS}[^\n。]{{0,120}}{_WAYS}|{_ACTS}[^\n.。]{{0,100}}{_SECRETS}|{_SECRETS}[^\n。]{{0,80}}{_WAYS}"
    rf"|{_SECRETS}[^\n.。]{{0,60}}{_ACTS}"
)


def weighed(sweep: Sweep, spots: Iterable[Spot]) -> Iterator[Spot]:
    """The spots of a view, in the light of what surrounds them."""
    is_about = sum(word in sweep.stretches for word in ABOUT) >= 2
    for spot in spots:
        if is_about and _is_quoted(sweep.data, spot.start):
            yield replace(spot, severity=raised(spot.severity, -1), score=spot.score / 2)
        elif spot.category in _RAISED:
            yield _beside_way_out(sweep.data, spot)
        else:
            yield spot


def _is_quoted(data: bytes, start: int) -> bool:
    """Whether it begins behind a quote that was opened on its line."""
    line = data[max(0, start - _LINE_BYTES) : start].rpartition(b"\n")[2]
    before = line.rstrip()
    if before.endswith(_QUOTES) or before.startswith(b">"):
        return True
    opened = line.rfind("“".encode()) > line.rfind("”".encode())
    return opened or line.count(b'"') % 2 == 1 or line.count(b"`") % 2 == 1


def _beside_way_out(data: bytes, spot: Spot) -> Spot:
    least, becomes = _RAISED[spot.category]
    if rank(spot.severity) < rank(least) or rank(spot.severity) >= rank(becomes):
        return spot
    start, end = max(0, spot.start - _NEAR_BYTES), min(len(data), spot.end + _NEAR_BYTES)
    if not any(_WAY_OUT.spans(data, start, end)):
        return spot
    return replace(spot, severity=becomes, score=max(spot.score, SCORES[becomes]))
