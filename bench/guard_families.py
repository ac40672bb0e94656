"""Recall on families of attacks that a detector was not trained on, at fixed rates of false alarms.

A family is a source of attacks, never a random part of one; a kind is a source of ordinary texts.
Both are left out of training before they are scored. The headline is the mean over families.
`guard_train` trains, leaves out and draws; `./dev bench families --data FOLDER` measures the guard
as it is shipped, whose classifier has seen these families.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import injected

from cellwall.core.errors import BadInput
from cellwall.guard.report import TextTreatment
from cellwall.guard.scanning import Scanner

RATES = (0.005, 0.01, 0.02, 0.05)
SCORE_OF_NONE = -math.inf
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Text:
    """One text of a family of attacks, or of a kind of ordinary texts."""

    family: str
    is_attack: bool
    text: str


@dataclass(frozen=True, slots=True)
class Share:
    """Flagged texts of a family or kind, with the 95 % interval of Wilson."""

    flagged: int
    total: int

    @property
    def rate(self) -> float:
        return self.flagged / self.total

    @property
    def interval(self) -> tuple[float, float]:
        n, p = self.total, self.rate
        middle = p + _Z * _Z / (2 * n)
        half = _Z * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
        scale = 1 + _Z * _Z / n
        return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """What a mean rate of false alarms gives."""

    threshold: float
    recall: float
    """Mean over the families."""
    false_alarms: float
    """Mean over the kinds."""
    unseen_false_alarms: float
    """Mean over the kinds, each at the threshold that the other kinds give."""
    families: Mapping[str, Share]
    kinds: Mapping[str, Share]

    @property
    def worst(self) -> float:
        return max((share.rate for share in self.kinds.values()), default=0.0)


def load(folder: Path) -> list[Text]:
    """The rows of `guard2/sets.jsonl` below a folder of development data."""
    path = folder / "guard2" / "sets.jsonl"
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        raise BadInput(
            "there is no guard2/sets.jsonl in the folder", hint="Give --data FOLDER."
        ) from None
    rows = (json.loads(line) for line in lines if line.strip())
    return [Text(str(row["set"]), bool(row["label"]), str(row["text"])) for row in rows]


def folds(texts: Sequence[Text]) -> list[frozenset[str]]:
    """Families and kinds that are left out together: each source of attacks once, with a share of
    the kinds of ordinary texts."""
    sources: dict[str, set[str]] = {}
    for text in texts:
        if text.is_attack:
            sources.setdefault(_origin(text.family), set()).add(text.family)
    if not sources:
        raise BadInput("the data has no attack", hint="Rows with label 1 are attacks.")
    kinds = sorted({text.family for text in texts if not text.is_attack})
    names = sorted(sources)
    return [
        frozenset(sources[name] | set(kinds[number :: len(names)]))
        for number, name in enumerate(names)
    ]


def _origin(family: str) -> str:
    """`agentdojo_direct` and `agentdojo_system_message` are one source; `direct_x` names two."""
    head, _, rest = family.partition("_")
    return family if head == "direct" else head if rest else family


def operating_point(texts: Sequence[Text], scores: Sequence[float], rate: float) -> OperatingPoint:
    """Recall and false alarms at the lowest threshold with at most this mean rate."""
    attacks, clean = (
        _grouped(texts, scores, is_attack=True),
        _grouped(texts, scores, is_attack=False),
    )
    threshold = _threshold(clean.values(), rate)
    unseen = []
    for kind, own in clean.items():
        others = [other for name, other in clean.items() if name != kind]
        limit = _threshold(others, rate) if others else threshold
        unseen.append(sum(score > limit for score in own) / len(own))
    families = {name: _share(own, threshold) for name, own in sorted(attacks.items())}
    kinds = {name: _share(own, threshold) for name, own in sorted(clean.items())}
    return OperatingPoint(
        threshold=threshold,
        recall=_mean(share.rate for share in families.values()),
        false_alarms=_mean(share.rate for share in kinds.values()),
        unseen_false_alarms=_mean(unseen),
        families=families,
        kinds=kinds,
    )


def _grouped(
    texts: Sequence[Text], scores: Sequence[float], *, is_attack: bool
) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for text, score in zip(texts, scores, strict=True):
        if text.is_attack == is_attack:
            groups.setdefault(text.family, []).append(score)
    return groups


def _threshold(groups: Iterable[Sequence[float]], rate: float) -> float:
    """The lowest score with at most this mean share above it."""
    every = list(groups)
    weighed = sorted(((score, 1 / len(group)) for group in every for score in group), reverse=True)
    allowed, used = rate * len(every), 0.0
    for number, (score, weight) in enumerate(weighed):
        used += weight
        is_last_of_equals = number + 1 == len(weighed) or weighed[number + 1][0] < score
        if used > allowed + 1e-9 and is_last_of_equals:
            return score
    return SCORE_OF_NONE


def _share(scores: Sequence[float], threshold: float) -> Share:
    return Share(sum(score > threshold for score in scores), len(scores))


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return statistics.fmean(every) if every else 0.0


def render(point: OperatingPoint) -> str:
    """A table with intervals."""
    head = f"mean recall {point.recall:.1%}, false alarms {point.false_alarms:.2%}"
    lines = [f"{head}, worst {point.worst:.1%}, unseen kinds {point.unseen_false_alarms:.2%}"]
    for title, shares in (("family", point.families), ("kind", point.kinds)):
        lines.append(f"{title:36} {'flagged':>9} {'rate':>7}  95 % interval")
        for name, share in shares.items():
            low, high = share.interval
            lines.append(
                f"{name:36} {share.flagged:4}/{share.total:<4} {share.rate:7.1%}  "
                f"{low:.1%} to {high:.1%}"
            )
    return "\n".join(lines)


def measure(_rounds: int, *, quiet: bool) -> dict[str, object]:
    """The guard as shipped: what it neutralises, asks about or blocks."""
    folder = injected.data_folder()
    if folder is None:
        raise BadInput("the development data is not here", hint="Give --data FOLDER.")
    texts, scanner = load(folder), Scanner()
    scores = [
        float(scanner.scan(text.text).verdict.rank >= TextTreatment.NEUTRALISE.rank)
        for text in texts
    ]
    shares = [
        {name: _share(own, 0.5) for name, own in _grouped(texts, scores, is_attack=label).items()}
        for label in (True, False)
    ]
    recall, alarms = (_mean(share.rate for share in each.values()) for each in shares)
    figures: dict[str, object] = {"mean_recall": round(recall, 4), "mean_alarms": round(alarms, 4)}
    if not quiet:
        print("families that the shipped classifier has seen: no estimate for unseen ones")
    for each in shares:
        for name, share in each.items():
            low, high = share.interval
            figures[name] = f"{share.rate:.1%} ({low:.1%} to {high:.1%} of {share.total})"
    return figures
