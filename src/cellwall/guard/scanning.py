"""Scans a text: runs the detectors and turns severities into a treatment (GRD-2, GRD-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cellwall.core.outcomes import SEVERITIES, Finding, Severity
from cellwall.guard.neutralise import Removal, remove
from cellwall.guard.report import GuardSettings, Hit, Kind, Report, Treatment, Treatments
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, checkpoint, grant

if TYPE_CHECKING:
    from cellwall.guard.channel_formats import Channel, Extracted
    from cellwall.guard.detect import Detector, Pack

_CLEAR = frozenset({"high", "critical"})
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
        from cellwall.guard.detect import Detector  # noqa: PLC0415  # loaded with the first text

        return Detector.shipped(self.packs)

    def scan(self, text: str, *, kind: Kind = "output", channel: Channel = "plain") -> Report:
        """Findings and treatment of a text in the raw form of its channel."""
        most = self.settings.max_characters
        looked_at = text[:most]
        budget = ScanBudget()
        grant(budget, len(looked_at))
        try:
            with budget.running():
                report = self._scan_within_budget(looked_at, kind, channel)
        except ScanUnfinished:
            return self._unfinished_report(looked_at, kind)
        is_complete = report.is_complete and len(text) <= most
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
            default=Treatment.ALLOW,
        )
        return Report(
            verdict=verdict,
            score=score,
            findings=tuple(findings),
            text="" if verdict is Treatment.BLOCK else shown(),
            is_complete=is_complete,
        )


# Most texts are plain; the parsers of the other formats are loaded with their first use.


def _extract(channel: Channel, text: str) -> Extracted | None:
    if channel == "plain":
        return None
    from cellwall.guard.channel_formats import read  # noqa: PLC0415  # see above

    return read(channel, text)


def _clean_for_channel(channel: Channel, text: str) -> str:
    if channel == "plain":
        return text
    from cellwall.guard.channel_formats import clean  # noqa: PLC0415  # see above

    return clean(channel, text)


def _neutralise(text: str, hits: Sequence[Hit], treatments: Treatments) -> str:
    """Remove every hit whose treatment is at least NEUTRALISE; an approval does not restore it."""
    at_least = Treatment.NEUTRALISE.rank
    found = [
        Removal((hit.start, hit.end), hit.category, is_clear=hit.severity in _CLEAR)
        for hit in hits
        if treatments[hit.severity].rank >= at_least
    ]
    return remove(text, found) if found else text


def _raise_severity(hit: Hit) -> Hit:
    """One step up: text that is hidden from people is meant for a model."""
    step = min(SEVERITIES.index(hit.severity) + 1, len(SEVERITIES) - 1)
    worse: Severity = SEVERITIES[step]
    return replace(hit, severity=worse)


def _max_score(score: float, hits: Sequence[Hit]) -> float:
    return max([score, *(hit.score for hit in hits)])
