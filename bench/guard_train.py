"""Trains the guard's classifier of passages, and measures it on families left out of training.

    .venv/bin/python bench/guard_train.py --data FOLDER --archives FOLDER
    .venv/bin/python bench/guard_train.py --data FOLDER --archives FOLDER --write

Needs NumPy alone; a processor is enough (some minutes). The sources, with licences and hashes, are
in bench/guard_data/MANIFEST.toml; the same sources give the same weights, byte for byte. Prints
recall at fixed rates of false alarms; `--plot` draws the curve; `--final` also measures the sets of
the final check; `--write` trains on all sets for training and writes the weights with their hash.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from guard_corpus import corpus, sets_for
from guard_families import RATES, Text, draw, folds, load, operating_point, render
from guard_fit import Rows, fit, number_features, text_scores

from cellwall.guard.detect.passages.features import candidates, describe, read
from cellwall.guard.detect.passages.scores import WEIGHT_DIGITS

_ROOT = Path(__file__).resolve().parents[1]
_PASSAGES = _ROOT / "src/cellwall/guard/detect/passages"
_MANIFEST = _ROOT / "bench/guard_data/MANIFEST.toml"
_MAX_CHARACTERS, _MAX_CANDIDATES = 8_000, 160
_LIMITS = {"denial": -2.0, "weak": -0.5, "assent": -0.5, "likely": 0.0, "certain": 1.8}
_SHIFTS = {
    **dict.fromkeys(("text under 120", "text over 120"), 1.0),
    **dict.fromkeys(("text over 300", "text over 700"), 1.8),
    **dict.fromkeys(("text over 1200", "text over 3000"), 0.9),
}
"""What a passage must score, by the size of its text, so that the guard has false alarms of about
1 % on kinds and families left out: prompts of some sentences come nearest to attacks."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--archives", type=Path, required=True)
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--scores", metavar="FILE.json", help="where the scores are written")
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    trained = corpus(options.data, options.archives)
    measured = [
        each for each in load(options.data) if each.family in _measured(is_final=options.final)
    ]
    with ProcessPoolExecutor() as pool:
        named = list(
            pool.map(_describe, [each.text for each in (*trained, *measured)], chunksize=60)
        )
    names, rows = number_features(named[: len(trained)], named)
    own, others = rows[: len(trained)], rows[len(trained) :]
    if options.write:
        _write(names, *fit(trained, own, len(names)))
        return 0
    scores = _left_out_scores(trained, own, measured, others, names)
    if options.scores:
        Path(options.scores).write_text(json.dumps(scores), "utf-8")
    for rate in RATES:
        print(render(operating_point(measured, scores, rate)), "\n")
    if options.plot:
        draw(measured, scores, options.plot)
    return 0


def _measured(*, is_final: bool) -> frozenset[str]:
    last = sets_for("final check") if is_final else frozenset[str]()
    return sets_for("training") | sets_for("measured") | last


def _left_out_scores(
    trained: Sequence[Text], own: Rows, measured: Sequence[Text], others: Rows, names: Sequence[str]
) -> list[float]:
    """Each measured text by a classifier that saw nothing of its source."""
    scores = [0.0] * len(measured)
    families = [each for each in trained if each.family in sets_for("training")]
    for left_out in [*folds(families), frozenset[str]()]:
        kept = [n for n, each in enumerate(trained) if each.family not in left_out]
        weights, base = fit([trained[n] for n in kept], [own[n] for n in kept], len(names))
        weights = _shifted(names, weights)
        for number, score in enumerate(text_scores(others, weights, base)):
            family = measured[number].family
            is_trained = family in sets_for("training")
            if family in left_out or (not left_out and not is_trained):
                scores[number] = score
    return scores


def _shifted(names: Sequence[str], weights: Sequence[float]) -> list[float]:
    return [weight - _SHIFTS.get(name, 0.0) for name, weight in zip(names, weights, strict=True)]


def _describe(text: str) -> list[list[str]]:
    passages, surroundings = read(text[:_MAX_CHARACTERS])
    chosen = candidates(passages)[:_MAX_CANDIDATES]
    return [sorted(set(describe(passages, number, surroundings))) for number in chosen]


def _write(names: Sequence[str], weights: Sequence[float], base: float) -> None:
    kept = {
        name: round(weight, WEIGHT_DIGITS)
        for name, weight in zip(names, _shifted(names, weights), strict=True)
        if abs(weight) >= 0.004
    }
    about = "Weights of a linear model by feature; made by bench/guard_train.py."
    lexicon = hashlib.sha256((_PASSAGES / "lexicon.toml").read_bytes()).hexdigest()
    told = {"about": about, "data": "bench/guard_data/MANIFEST.toml", "lexicon_sha256": lexicon}
    data = json.dumps(
        {**told, "base": round(base, WEIGHT_DIGITS), **_LIMITS, "features": kept},
        ensure_ascii=False,
        indent=0,
    )
    data += "\n"
    (_PASSAGES / "weights.json").write_text(data, "utf-8")
    digest = hashlib.sha256(data.encode()).hexdigest()
    for path, place in (
        (_PASSAGES / "scores.py", r'(?<=WEIGHTS_SHA256 = ")\w*'),
        (_MANIFEST, r'(?<=\[weights\]\nsha256 = ")\w*'),
    ):
        path.write_text(re.sub(place, digest, path.read_text("utf-8")), "utf-8")
    print(len(kept), "features", digest)


if __name__ == "__main__":
    sys.exit(main())
