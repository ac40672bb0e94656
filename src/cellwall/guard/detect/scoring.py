"""Categories, severities and scores: from single hits to one result (GRD-2).

Score: hits within a category count as independent evidence (noisy or), up to the cap of the
category; categories combine in the same way. So a second kind of evidence counts for more than the
same evidence twice, no flood of weak hits adds up to certainty, and the result is between 0 and 1.

Severity: the strongest hit decides, after three adjustments.
(1) A quoted example in a text about attacks goes down by one step. By one only: an attacker can
    write quotes and the word "jailbreak" too, and the hit is then still treated as medium (GRD-3).
(2) An instruction beside an order to send data out or to disclose a secret becomes critical.
(3) An instruction in a disguise becomes at least high, since harmless text is not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cellwall.core.outcomes import SEVERITIES, Severity
from cellwall.guard.detect.sweep import Spot, Sweep, as_word
from cellwall.guard.report import Hit
from cellwall.parsing.matching import Pattern

CAPS: Mapping[str, float] = {
    "injection": 0.97,
    "jailbreak": 0.95,
    "role-marker": 0.85,
    "system-prompt": 0.95,
    "exfiltration": 0.97,
    "tool-call": 0.9,
    "delimiter": 0.9,
    "code-injection": 0.8,
    # Unusual characters alone are normal for some scripts, for emoji and for careless editors.
    "hidden": 0.6,
    "beacon": 0.9,
    "many-shot": 0.8,
    "urgency": 0.7,
    "task": 0.8,
    "instruction": 0.9,
}
"""Upper bound of the score of a category, however many hits: a hundred role markers are one
transcript, and none of them is an instruction."""

CATEGORIES = tuple(CAPS)

SCORES: Mapping[Severity, float] = {"low": 0.2, "medium": 0.5, "high": 0.8, "critical": 0.95}
"""Default score of a rule by its severity."""


def rank(severity: Severity) -> int:
    """Index of the severity, from the mildest."""
    return SEVERITIES.index(severity)


def shift_severity(severity: Severity, steps: int) -> Severity:
    """The severity `steps` higher, or lower if negative, clamped to the scale."""
    return SEVERITIES[min(len(SEVERITIES) - 1, max(0, rank(severity) + steps))]


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
"""Terms of texts about attacks. Two different ones mean that a text is about attacks."""

# Per category: the least severity that is raised, and the severity beside an exfiltration order.
# A JSON call with an address in it is ordinary program output, so `tool-call` stops at high.
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
_DESTINATIONS = (
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
# A verb and its object within one sentence; an address alone is no exfiltration.
_EGRESS_OR_SECRET = Pattern(
    rf"{_SHOWS}[^\n.。]{{0,60}}{_SECRETS}|"
    rf"{_ACTS}[^\n。]{{0,120}}{_DESTINATIONS}|{_ACTS}[^\n.。]{{0,100}}{_SECRETS}|{_SECRETS}[^\n。]{{0,80}}{_DESTINATIONS}"
    rf"|{_SECRETS}[^\n.。]{{0,60}}{_ACTS}"
)


def weigh_by_context(sweep: Sweep, spots: Iterable[Spot]) -> Iterator[Spot]:
    """Adjustments (1) and (2): the spots of a view, by their surroundings."""
    is_about = sum(word in sweep.stretches for word in ABOUT) >= 2
    for spot in spots:
        if is_about and _is_quoted(sweep.data, spot.start):
            yield replace(spot, severity=shift_severity(spot.severity, -1), score=spot.score / 2)
        elif spot.category in _RAISED:
            yield _raise_beside_egress(sweep.data, spot)
        else:
            yield spot


def _is_quoted(data: bytes, start: int) -> bool:
    """Whether the spot begins after an opening quote on its line."""
    line = data[max(0, start - _LINE_BYTES) : start].rpartition(b"\n")[2]
    before = line.rstrip()
    if before.endswith(_QUOTES) or before.startswith(b">"):
        return True
    opened = line.rfind("“".encode()) > line.rfind("”".encode())
    return opened or line.count(b'"') % 2 == 1 or line.count(b"`") % 2 == 1


def _raise_beside_egress(data: bytes, spot: Spot) -> Spot:
    least, becomes = _RAISED[spot.category]
    if rank(spot.severity) < rank(least) or rank(spot.severity) >= rank(becomes):
        return spot
    start, end = max(0, spot.start - _NEAR_BYTES), min(len(data), spot.end + _NEAR_BYTES)
    if not any(_EGRESS_OR_SECRET.spans(data, start, end)):
        return spot
    return replace(spot, severity=becomes, score=max(spot.score, SCORES[becomes]))


MAX_HITS = 200
_CAP_OF_OTHERS = 0.8
_NEAR_CHARACTERS = 200
# Encodings that programs use for ordinary text; the others hide something.
_ORDINARY = frozenset({"url", "html", "quoted-printable", "json", "escapes"})
# Ordinary for whole files and mails, but not for an instruction to a model.
_PACKED = frozenset({"base64", "base32", "hex"})


def combine_scores(hits: Iterable[Hit]) -> float:
    """Combined score of all hits."""
    doubts: dict[str, float] = {}
    for hit in hits:
        doubts[hit.category] = doubts.get(hit.category, 1.0) * (1.0 - hit.score)
    doubt = 1.0
    for category, left in doubts.items():
        doubt *= max(left, 1.0 - CAPS.get(category, _CAP_OF_OTHERS))
    return 1.0 - doubt


def raise_disguised(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Adjustment (3): instructions in a disguise become high."""
    disguises = [hit for hit in hits if hit.category == "hidden"]
    return tuple(
        replace(hit, severity="high", score=max(hit.score, 0.85))
        if _is_disguised(hit, disguises)
        else hit
        for hit in hits
    )


def _is_disguised(hit: Hit, disguises: Sequence[Hit]) -> bool:
    if hit.severity != "medium" or hit.category == "hidden":
        return False
    unusual = set(hit.via) - _ORDINARY
    if unusual - _PACKED or (unusual and hit.category != "task"):
        return True
    return not hit.via and any(
        hidden.start < hit.end + _NEAR_CHARACTERS and hit.start < hidden.end + _NEAR_CHARACTERS
        for hidden in disguises
        if rank(hidden.severity) >= rank("medium")
    )


def merge_hits(hits: Iterable[Hit]) -> list[Hit]:
    """Merge overlapping hits of one category into the strongest, over the whole span."""
    found: list[Hit] = []
    last: dict[str, int] = {}
    for hit in sorted(hits, key=lambda hit: (hit.start, hit.end, len(hit.via), hit.rule)):
        place = last.get(hit.category)
        if place is not None and hit.start < found[place].end:
            found[place] = _strongest_of_two(found[place], hit)
        else:
            last[hit.category] = len(found)
            found.append(hit)
    return found


def limit_hits(hits: Sequence[Hit], most: int = MAX_HITS) -> tuple[Hit, ...]:
    """At most `most` hits in order; neighbours are merged, so that every span stays covered."""
    if len(hits) <= most:
        return tuple(hits)
    ordered = sorted(hits, key=lambda hit: (hit.start, hit.end))
    size = -(-len(ordered) // most)
    groups = (ordered[at : at + size] for at in range(0, len(ordered), size))
    return tuple(_strongest_of(group) for group in groups)


def _strongest_of(hits: Sequence[Hit]) -> Hit:
    found = hits[0]
    for hit in hits[1:]:
        found = _strongest_of_two(found, hit)
    return found


def _strongest_of_two(left: Hit, right: Hit) -> Hit:
    strongest = max(left, right, key=lambda hit: (rank(hit.severity), hit.score, -len(hit.via)))
    return replace(strongest, start=min(left.start, right.start), end=max(left.end, right.end))
