"""The whole guard, rules and votes included, with classifiers that saw nothing of a source.

`guard_train --guard` prints the shares of texts that are neutralised, asked about or blocked. The
limits of the classifier are those that `--write` would ship.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
from guard_attention import to_file
from guard_attention_texts import FOLDS, left_out
from guard_families import Share, Text, share_rows

from cellwall.guard.detect.passages import finder
from cellwall.guard.detect.passages.scores import PassageModel, parse_parts
from cellwall.guard.report import TextTreatment
from cellwall.guard.scanning import Scanner

_AT_ONCE = 150
Parts = tuple[dict[str, object], bytes, bytes]
"""What weights.json would say, network.bin and attention.bin."""


def students(folder: Path) -> list[bytes]:
    """The attention network of each fold that guard_attention_train wrote."""
    return [to_file(dict(np.load(folder / f"student-{fold}.npz"))) for fold in range(FOLDS)]


def by_student(texts: Sequence[Text], families: Sequence[str]) -> Iterator[tuple[int, list[Text]]]:
    """For each fold, the texts of which its network saw nothing; ordinary kinds, which are never
    trained on, have the last one. `families`: of all measured texts."""
    out = [left_out(families, fold) for fold in range(FOLDS)]
    own: dict[int, list[Text]] = {}
    for text in texts:
        fold = next((fold for fold in range(FOLDS) if text.family in out[fold]), FOLDS - 1)
        own.setdefault(fold, []).append(text)
    yield from own.items()


def alarms(jobs: Iterable[tuple[Parts, Sequence[Text]]]) -> dict[str, Share]:
    """Of each family and kind, how many texts the guard acts on."""
    pieces = [
        (parts, texts[at : at + _AT_ONCE])
        for parts, texts in jobs
        for at in range(0, len(texts), _AT_ONCE)
    ]
    counts: dict[str, list[int]] = {}
    with ProcessPoolExecutor() as pool:
        for (_, texts), found in zip(pieces, pool.map(_scan, pieces), strict=True):
            for text, is_alarm in zip(texts, found, strict=True):
                count = counts.setdefault(text.family, [0, 0])
                count[0] += is_alarm
                count[1] += 1
    return {family: Share(flagged, total) for family, (flagged, total) in sorted(counts.items())}


def _scan(job: tuple[Parts, Sequence[Text]]) -> list[bool]:
    parts, texts = job
    known: PassageModel = parse_parts(*parts)
    with mock.patch.object(finder, "model", return_value=known):
        scanner = Scanner()
        return [
            scanner.scan(each.text).verdict.rank >= TextTreatment.NEUTRALISE.rank for each in texts
        ]


def render(texts: Sequence[Text], shares: dict[str, Share]) -> str:
    """A line for each family and kind, and the means."""
    is_attack = {text.family: text.is_attack for text in texts}
    lines = []
    for title, kind in (("family", True), ("kind", False)):
        own = {name: share for name, share in shares.items() if is_attack[name] is kind}
        mean = sum(share.rate for share in own.values()) / max(1, len(own))
        lines.append(f"mean over {len(own)} of each {title}: {mean:.2%}")
        lines += share_rows(own)
    return "\n".join(lines)
