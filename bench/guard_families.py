"""Recall on families of attacks that a detector was not trained on, at fixed rates of false alarms.

A family is a source of attacks, never a random part of one; a kind is a source of ordinary texts.
Both are left out of training before they are scored. The headline is the mean over families.
`guard_train` trains, leaves out and draws; `./dev bench families --data FOLDER` measures the guard
as it is shipped, whose classifier has seen these families.
"""

from __future__ import annotations

import json
import math
import re
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
    start: int = -1
    """Where the attack stands, in a text that was written for training."""
    end: int = -1


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
            sources.setdefault(origin(text.family), set()).add(text.family)
    if not sources:
        raise BadInput("the data has no attack", hint="Rows with label 1 are attacks.")
    kinds = sorted({text.family for text in texts if not text.is_attack})
    names = sorted(sources)
    return [
        frozenset(sources[name] | set(kinds[number :: len(names)]))
        for number, name in enumerate(names)
    ]


def origin(family: str) -> str:
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
        lines += share_rows(shares)
    return "\n".join(lines)


def share_rows(shares: Mapping[str, Share]) -> list[str]:
    """A line for each share, with its interval."""
    rows = []
    for name, share in shares.items():
        low, high = share.interval
        rows.append(
            f"{name:36} {share.flagged:4}/{share.total:<4} {share.rate:7.1%}  "
            f"{low:.1%} to {high:.1%}"
        )
    return rows


def draw(texts: Sequence[Text], scores: Sequence[float], path: str) -> None:
    """The curve of mean recall over mean false alarms."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # slow to load, for --plot alone

    rates = [step / 1000 for step in range(1, 101)]
    points = [operating_point(texts, scores, rate) for rate in rates]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([100 * p.false_alarms for p in points], [100 * p.recall for p in points])
    axes.set(
        xlabel="mean false alarms over kinds of ordinary texts (%)",
        ylabel="mean recall over unseen families (%)",
        ylim=(0, 100),
    )
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path)


_FACT = re.compile(
    r"https?://[^\s)>\"']+|`[^`\n]+`|--?[a-z][\w-]+|\b\w*\d[\w.,:-]*"
    r"|\b[A-Z]\w+(?: [A-Z]\w+)*|[\w.+-]+@[\w.-]+"
)


def kept_facts(text: str, shown: str) -> float:
    """The share of the facts of a text (names, numbers, addresses, options, code) that is left."""
    facts = {found.rstrip(".,:") for found in _FACT.findall(text)}
    return sum(fact in shown for fact in facts) / len(facts) if facts else 1.0


def measure(_rounds: int, *, quiet: bool) -> dict[str, object]:
    """The guard as shipped. What it neutralises, asks about or blocks is an alarm; what it only
    marks is counted apart. Of ordinary texts with an alarm, the facts that are left."""
    folder = injected.data_folder()
    if folder is None:
        raise BadInput("the development data is not here", hint="Give --data FOLDER.")
    texts, scanner = load(folder), Scanner()
    reports = [scanner.scan(text.text) for text in texts]
    alarms = [float(each.verdict.rank >= TextTreatment.NEUTRALISE.rank) for each in reports]
    marks = [
        float(bool(each.findings)) - alarm for each, alarm in zip(reports, alarms, strict=True)
    ]
    figures: dict[str, object] = {}
    for title, counted in (("alarm", alarms), ("only marked", marks)):
        for name, is_attack in (("attacks", True), ("ordinary texts", False)):
            shares = {
                family: _share(own, 0.5)
                for family, own in sorted(_grouped(texts, counted, is_attack=is_attack).items())
            }
            figures[f"{name}: mean {title}"] = round(
                _mean(each.rate for each in shares.values()), 4
            )
            for family, share in shares.items() if title == "alarm" else ():
                low, high = share.interval
                figures[family] = f"{share.rate:.1%} ({low:.1%} to {high:.1%} of {share.total})"
    kept = [
        kept_facts(text.text, report.text)
        for text, report, alarm in zip(texts, reports, alarms, strict=True)
        if alarm and not text.is_attack
    ]
    figures["ordinary texts with an alarm"] = len(kept)
    figures["facts that they keep"] = round(_mean(kept), 4)
    figures["of these texts, with all facts"] = sum(each == 1.0 for each in kept)
    if not quiet:
        print("trained on: see bench/guard_data/MANIFEST.toml; the other families are unseen")
    return figures
