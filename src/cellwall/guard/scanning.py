"""Scans a text: runs the detectors and turns severities into a treatment (GRD-2, GRD-3)."""

# ruff: noqa: PLC0415  # late imports: the detectors and formats are loaded with the first text
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cellwall.core.outcomes import SEVERITIES, Finding, Severity
from cellwall.guard.clean_texts import CleanTexts
from cellwall.guard.report import GuardSettings, Hit, Kind, Report, TextTreatment, Treatments
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, checkpoint, grant

if TYPE_CHECKING:
    from cellwall.guard.channel_formats import Channel, Extracted
    from cellwall.guard.detect import Detector, Pack
import re

# Removes attacks from a text and keeps the rest (GRD-3).
#
# A rule seldom matches the whole attack, and half an instruction still instructs. So a likely
# attack is removed with its sentence, also across wrapped lines; a clear one that a rule found with
# the rest of its paragraph, and with the paragraph that a colon introduces. A note states how many
# characters were removed.

_REACH = 2000
"""Maximum extension to each side, in characters."""
# Sentence ends: Latin and Arabic, then Chinese and Japanese.
_WIDE = "\u3002\uff01\uff1f"
_QUOTES = "'\"\u201d\u00bb)\\]"
_STOP = re.compile(rf"[.!?\u061f][{_QUOTES}]*(?=\s|$)|[{_WIDE}][{_QUOTES}]*|\n")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|mr|mrs|ms|dr|prof|vs|cf|no|nr|st|bzw|z\.b|ca|approx|[a-z]))\.$",
    re.IGNORECASE,
)
# A line that continues the sentence of the previous line, after quote and list markers.
_GOES_ON = re.compile(r"(?:[ \t>|*]|<br */?>)*[a-z\u00df-\u00ff\u0430-\u044f]")
_BLANK_LINE = re.compile(r"\n(?:[ \t>|]|<br */?>)*\n")
_INTRODUCED = re.compile(r":[ \t*_]*(?:<br */?>)?\s*\Z")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """A span to remove, its category, and whether it is clearly an attack."""

    span: Span
    what: str
    is_clear: bool = False


def removal_note(start: int, end: int, what: str) -> str:
    """The note that replaces a span."""
    return f"[{end - start} characters removed: {what}]"


def remove(text: str, found: Iterable[Removal]) -> str:
    """The text without the spans and their surroundings; each gap names its category."""
    parts: list[str] = []
    at = 0
    for (start, end), what in _merged((_extent(text, each), each.what) for each in found):
        parts += [text[at:start], removal_note(start, end, what)]
        at = end
    return "".join([*parts, text[at:]])


def _extent(text: str, found: Removal) -> Span:
    start, end = found.span
    begin, last = _begin(text, start), _end(text, start, end)
    if found.is_clear:
        last = _paragraph(text, last)
    return begin, last


def _begin(text: str, start: int) -> int:
    """Start of the sentence, or the limit if none is within reach."""
    least = max(0, start - _REACH)
    begin = least
    for stop in _STOP.finditer(text, least, start):
        if _is_end(text, stop):
            begin = stop.end()
    while begin < start and text[begin].isspace():
        begin += 1
    return begin


def _end(text: str, start: int, end: int) -> int:
    most = min(len(text), end + _REACH)
    # The match itself may end with the full stop.
    for stop in _STOP.finditer(text, max(start, end - 1), most):
        if stop.end() >= end and _is_end(text, stop):
            return max(end, stop.start() if stop[0] == "\n" else stop.end())
    return most


def _is_end(text: str, stop: re.Match[str]) -> bool:
    if stop[0] == "\n":
        return _GOES_ON.match(text, stop.end()) is None
    if stop[0][0] in _WIDE:
        return True
    if _ABBREVIATION.search(text, max(0, stop.start() - 12), stop.start() + 1):
        return False
    after = text[stop.end() : stop.end() + 3].lstrip(" \t")
    return not after[:1].islower()


def _paragraph(text: str, at: int) -> int:
    """End of the paragraph, or of the next one if this paragraph ends with a colon."""
    most = min(len(text), at + _REACH)
    for blank in _BLANK_LINE.finditer(text, max(0, at - 1), most):
        if _INTRODUCED.search(text, max(0, blank.start() - 16), blank.start()) is None:
            return max(at, blank.start())
    return max(at, len(text[:most].rstrip("\n")))


def _merged(spans: Iterable[tuple[Span, str]]) -> list[tuple[Span, str]]:
    merged: list[tuple[Span, str]] = []
    for (start, end), what in sorted(spans):
        if merged and start <= merged[-1][0][1]:
            (first, last), kinds = merged[-1]
            both = kinds if what in kinds.split(", ") else f"{kinds}, {what}"
            merged[-1] = ((first, max(last, end)), both)
        else:
            merged.append(((start, end), what))
    return merged


_CLEAR = frozenset({"high", "critical"})
_BY_PASSAGE = frozenset({"instruction"})
# A model reads the raw form of these; the other formats are taken apart first.
_READ_AS_THEY_ARE = frozenset({"plain", "markdown"})


@dataclass(frozen=True)
class Scanner:
    """Scans texts. Create it once: the rules are loaded with the first text."""

    settings: GuardSettings = field(default_factory=GuardSettings)
    packs: tuple[Pack, ...] = ()
    """The user's own rules, beside the shipped ones."""

    @cached_property
    def _detector(self) -> Detector:
        from cellwall.guard.detect import Detector

        return Detector.shipped(self.packs)

    @cached_property
    def _clean(self) -> CleanTexts:
        return CleanTexts()

    def scan(self, text: str, *, kind: Kind = "output", channel: Channel = "plain") -> Report:
        """Findings and treatment of a text in the raw form of its channel."""
        most = self.settings.max_characters
        digest = self._clean.digest(text, kind) if channel == "plain" else None
        score = self._clean.score(digest)
        if score is not None:
            return Report(verdict=TextTreatment.ALLOW, score=score, findings=(), text=text)
        looked_at = text[:most]
        budget = ScanBudget()
        grant(budget, len(looked_at))
        try:
            with budget.running():
                report = self._scan_within_budget(looked_at, kind, channel)
        except ScanUnfinished:
            return self._unfinished_report(looked_at, kind)
        is_complete = report.is_complete and len(text) <= most
        if is_complete and not report.findings:
            self._clean.add(digest, report.score)
        return report if is_complete else replace(report, is_complete=False)

    def _scan_within_budget(self, text: str, kind: Kind, channel: Channel) -> Report:
        extracted = _extract(channel, text)
        if extracted is None or channel in _READ_AS_THEY_ARE:
            return self._scan_whole(text, kind, channel, extracted)
        return self._scan_pieces(text, kind, channel, extracted)

    def _unfinished_report(self, text: str, kind: Kind) -> Report:
        """The content is unknown, so it is treated as critical (GRD-11)."""
        finding = Finding(
            "unscanned",
            "critical",
            "the text takes too long to scan: most of it is made to look like an attack",
            rule="scan.not-finished",
            span=(0, len(text)),
        )
        return self._build_report([finding], kind, score=1.0, shown=lambda: text, is_complete=False)

    def _scan_whole(
        self, text: str, kind: Kind, channel: Channel, extracted: Extracted | None
    ) -> Report:
        """A text that a model reads as it is: spans refer to the text itself."""
        detection = self._detector.find(text, kind=kind)
        hits = list(detection.hits)
        score, is_complete = detection.score, detection.is_complete
        hidden: list[Finding] = []
        if extracted is not None:
            hits += extracted.hits
            score, is_complete = (
                _max_score(score, extracted.hits),
                is_complete and extracted.is_complete,
            )
            for piece in extracted.pieces:
                if piece.is_hidden:
                    found = self._detector.find(piece.text, kind=kind)
                    score = max(score, found.score)
                    hidden += [_raise_severity(hit).finding(piece.where) for hit in found.hits]
        return self._build_report(
            [*(hit.finding() for hit in hits), *hidden],
            kind,
            score=score,
            shown=lambda: _clean_for_channel(
                channel, _neutralise(text, hits, self.settings.treatments(kind))
            ),
            is_complete=is_complete,
        )

    def _scan_pieces(self, raw: str, kind: Kind, channel: Channel, extracted: Extracted) -> Report:
        """A structured message: spans refer to the piece that a finding names.

        The raw form is scanned as well: names and short strings in it are not extracted, and a
        model may be given the raw form.
        """
        findings = [hit.finding() for hit in extracted.hits]
        visible: list[tuple[str, Sequence[Hit]]] = []
        score, is_complete = 0.0, extracted.is_complete
        for piece in extracted.pieces:
            checkpoint()
            found = self._detector.find(piece.text, kind=kind)
            score, is_complete = max(score, found.score), is_complete and found.is_complete
            hits = [_raise_severity(hit) for hit in found.hits] if piece.is_hidden else found.hits
            findings += [hit.finding(piece.where) for hit in hits]
            if not piece.is_hidden:
                visible.append((piece.text, hits))
        whole = self._detector.find(raw, kind=kind)
        known = {finding.rule for finding in findings}
        findings += [hit.finding("source") for hit in whole.hits if hit.rule not in known]
        score, is_complete = max(score, whole.score), is_complete and whole.is_complete
        return self._build_report(
            findings,
            kind,
            score=_max_score(score, extracted.hits),
            shown=lambda: _clean_for_channel(
                channel,
                "\n".join(
                    _neutralise(text, hits, self.settings.treatments(kind))
                    for text, hits in visible
                ),
            ),
            is_complete=is_complete,
        )

    def _build_report(
        self,
        findings: Sequence[Finding],
        kind: Kind,
        *,
        score: float,
        shown: Callable[[], str],
        is_complete: bool,
    ) -> Report:
        verdict = max(
            (self.settings.treatments(kind)[finding.severity] for finding in findings),
            key=lambda treatment: treatment.rank,
            default=TextTreatment.ALLOW,
        )
        return Report(
            verdict=verdict,
            score=score,
            findings=tuple(findings),
            text="" if verdict is TextTreatment.BLOCK else shown(),
            is_complete=is_complete,
        )


# Most texts are plain; the parsers of the other formats are loaded with their first use.


def _extract(channel: Channel, text: str) -> Extracted | None:
    if channel == "plain":
        return None
    from cellwall.guard.channel_formats import read

    return read(channel, text)


def _clean_for_channel(channel: Channel, text: str) -> str:
    if channel == "plain":
        return text
    from cellwall.guard.channel_formats import clean

    return clean(channel, text)


def _neutralise(text: str, hits: Sequence[Hit], treatments: Treatments) -> str:
    """Remove every hit whose treatment is at least NEUTRALISE; an approval does not restore it."""
    at_least = TextTreatment.NEUTRALISE.rank
    found = [
        Removal((hit.start, hit.end), hit.category, is_clear=_is_clear(hit))
        for hit in hits
        if treatments[hit.severity].rank >= at_least
    ]
    return remove(text, found) if found else text


def _is_clear(hit: Hit) -> bool:
    """Whether the rest of the paragraph goes too. A rule matches a part of an attack, and the
    classifier judges each passage: what it does not report stays."""
    return hit.severity in _CLEAR and hit.category not in _BY_PASSAGE


def _raise_severity(hit: Hit) -> Hit:
    """One step up: text that is hidden from people is meant for a model."""
    step = min(SEVERITIES.index(hit.severity) + 1, len(SEVERITIES) - 1)
    worse: Severity = SEVERITIES[step]
    return replace(hit, severity=worse)


def _max_score(score: float, hits: Sequence[Hit]) -> float:
    return max([score, *(hit.score for hit in hits)])
