"""Trains the guard's classifier of passages, and measures it on families left out of training.

    .venv/bin/python bench/guard_train.py --data FOLDER --archives FOLDER
    .venv/bin/python bench/guard_train.py --data FOLDER --archives FOLDER --write

Needs NumPy and PyYAML; a processor is enough (some minutes). The sources, with licences and
hashes, are in bench/guard_data/MANIFEST.toml. One thread adds up in one order, so the same sources
give the same weights, byte for byte, with the same build of NumPy. Prints recall at fixed rates of
false alarms; `--authors` also leaves out the authors of the written texts and the packages, which
tells what to expect of an unseen source; `--guard FOLDER` runs the whole guard with each left-out
classifier; `--plot` draws the curve; `--final` also measures the sets of the final check; `--write`
trains on all sets for training and writes the weights with their hash.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from guard_corpus import check, corpus, manifest, sets_for
from guard_families import RATES, Text, draw, folds, load, operating_point, origin, render
from guard_fit import Rows, number_features, passage_scores
from guard_fit import fit as fit_linear
from guard_left_out import Parts, alarms, by_student, students
from guard_left_out import render as render_guard
from guard_network import Network
from guard_network import fit as fit_network
from guard_passages import Passages, describe_all, frequent_traits, join
from guard_sources import author, author_folds, expected
from guard_sources import render as render_sources
from guard_vectors import DIMS, LENGTH, SCALE, PieceTable, read_table

from cellwall.guard.detect.passages.attention import AttentionSettings
from cellwall.guard.detect.passages.features import shape_of
from cellwall.guard.detect.passages.isolation import IsolationSettings, isolated
from cellwall.guard.detect.passages.linear import WEIGHT_DIGITS

_ROOT = Path(__file__).resolve().parents[1]
_PASSAGES = _ROOT / "src/cellwall/guard/detect/passages"
_MANIFEST = _ROOT / "bench/guard_data/MANIFEST.toml"
_MIN_WEIGHT = 0.004
_LINEAR_SHARE = 0.2
_ISOLATION = IsolationSettings(rank=4, beside=2, floor=-5.0, share=0.3, most=4.0)
_LIMITS = {"denial": -2.0, "weak": -1.6, "assent": -1.5, "likely": -1.5, "certain": 0.25}
"""What a passage must score, so that the guard has false alarms of less than 1 % on kinds and
families left out, and of 5 % on the worst kind."""
_SHIFTS = {
    "text under 120": 1.75,
    "text over 700": 0.2,
    "text over 1200": 0.2,
    "text over 3000": 0.6,
}
"""What it must score more: one line says little about its place, and a long text has more passages
that may be taken for an instruction."""
_ATTENTION = AttentionSettings(share=0.15, low=-3.0, high=1.0, passages=2, floor=-2.6)
"""Below the floor a passage cannot reach a limit, however it is read. Four passages instead of two
find nothing more, in any left-out source, and cost twice the time."""
_SCORE_OF_NONE = -20.0


@dataclass(frozen=True, slots=True)
class _Material:
    """Texts as both models take them."""

    texts: Sequence[Text]
    passages: Passages
    rows: Rows
    again: Mapping[int, int]
    """Of a text, the number of its other draw."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--archives", type=Path, required=True)
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument("--scores", metavar="FILE.json", help="where the scores are written")
    parser.add_argument("--final", action="store_true")
    parser.add_argument(
        "--guard",
        type=Path,
        metavar="FOLDER",
        help="also the whole guard, left out, with the students of guard_attention_train there",
    )
    parser.add_argument("--authors", action="store_true", help="also leave out authors")
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--attention",
        type=Path,
        default=_PASSAGES / "attention.bin",
        metavar="FILE",
        help="the attention network, which is not trained here; as shipped where none is given",
    )
    options = parser.parse_args(arguments)
    drawn = corpus(options.data, options.archives)
    trained, again = drawn.texts, drawn.again
    measured = [
        each for each in load(options.data) if each.family in _measured(is_final=options.final)
    ]
    told = manifest()["vectors"]
    archive = check(options.archives, told["file"], told["sha256"])
    sets = len(measured)
    if options.authors:
        measured += [each for each in drawn.once if author(each.family)]
    texts = trained if options.write else [*trained, *measured]
    described = describe_all(texts, archive)
    count = len(trained)
    once = described[: drawn.count]
    traits = frequent_traits(once)
    features, rows = number_features(
        [each.features for each in once], [each.features for each in described]
    )
    own = _Material(trained, join(trained, described[:count], traits), rows[:count], again)
    if options.write:
        every = np.ones((count, 1), bool)
        (network,) = fit_network(trained, own.passages, every, again)
        ((weights, base),) = fit_linear(trained, own.rows, len(features), every, again)
        parts = _parts(
            read_table(archive),
            traits,
            network,
            _kept(features, weights),
            base,
            options.attention.read_bytes(),
        )
        _write(parts)
        return 0
    others = _Material(measured, join(measured, described[count:], traits), rows[count:], {})
    scores, jobs = [0.0] * len(measured), []
    for fitted in _left_out(own, len(features), with_authors=options.authors):
        for number, score in fitted.scores(others):
            scores[number] = score
        if options.guard:
            kept = _kept(features, fitted.weights), fitted.base
            unseen = [text for text in measured if fitted.is_unseen(text)]
            for fold, own_texts in by_student(unseen, [text.family for text in measured]):
                attention = students(options.guard)[fold]
                parts = _parts(read_table(archive), traits, fitted.network, *kept, attention)
                jobs.append((parts, own_texts))
    if options.guard:
        print(render_guard(measured, alarms(jobs)), "\n")
    if options.scores:
        Path(options.scores).write_text(json.dumps(scores), "utf-8")
    for rate in RATES:
        point = operating_point(measured[:sets], scores[:sets], rate)
        print(render(point), "\n")
        if options.authors:
            print(render_sources(expected(point, measured[sets:], scores[sets:])), "\n")
    if options.plot:
        draw(measured[:sets], scores[:sets], options.plot)
    return 0


def _measured(*, is_final: bool) -> frozenset[str]:
    last = sets_for("final check") if is_final else frozenset[str]()
    return sets_for("training") | sets_for("measured") | last


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Both models, trained without some families and kinds."""

    left_out: frozenset[str]
    trained: frozenset[str]
    """The sets for training; without a set left out, the others are unseen."""
    network: Network
    weights: Sequence[float]
    base: float

    def is_unseen(self, text: Text) -> bool:
        if self.left_out:
            return text.family in self.left_out
        return text.family not in self.trained and not author(text.family)

    def scores(self, others: _Material) -> Iterator[tuple[int, float]]:
        """The numbers and scores of the texts that it saw nothing of."""
        both = _LINEAR_SHARE * passage_scores(others.rows, self.weights, self.base)
        both += (1 - _LINEAR_SHARE) * self.network.scores(others.passages.rows)
        for number, text in enumerate(others.texts):
            if self.is_unseen(text):
                own_scores = both[others.passages.of_text(number)].tolist()
                yield number, _strongest(own_scores, shape_of(text.text))


def _left_out(own: _Material, features: int, *, with_authors: bool) -> Iterator[_Fitted]:
    """For each source of attacks, and for what is never trained on: models without it."""
    trained = sets_for("training")
    sources_left_out = [
        *folds([each for each in own.texts if each.family in trained]),
        *(author_folds(own.texts) if with_authors else ()),
        frozenset[str](),
    ]
    sources = [{origin(family) for family in left_out} for left_out in sources_left_out]
    known = np.array(
        [[origin(each.family) not in left_out for left_out in sources] for each in own.texts]
    )
    networks = fit_network(own.texts, own.passages, known, own.again)
    linear = fit_linear(own.texts, own.rows, features, known, own.again)
    for left_out, network, (weights, base) in zip(sources_left_out, networks, linear, strict=True):
        yield _Fitted(left_out, trained, network, weights, base)


def _strongest(scores: Sequence[float], shape: frozenset[str]) -> float:
    strongest = max(isolated(scores, _ISOLATION), default=_SCORE_OF_NONE)
    return strongest - sum(_SHIFTS.get(name, 0.0) for name in shape)


def _kept(features: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    return {
        name: round(weight, WEIGHT_DIGITS)
        for name, weight in zip(features, weights, strict=True)
        if abs(weight) >= _MIN_WEIGHT
    }


def _parts(
    table: PieceTable,
    traits: Sequence[str],
    network: Network,
    kept: dict[str, float],
    base: float,
    attention: bytes,
) -> Parts:
    """What the files of the model say."""
    data = _network_file(table, traits, network)
    return (
        {
            "about": "Weights of a linear model by feature; made by bench/guard_train.py.",
            "data": "bench/guard_data/MANIFEST.toml",
            "lexicon_sha256": _sha256((_PASSAGES / "lexicon.toml").read_bytes()),
            "network_sha256": _sha256(data),
            "attention_sha256": _sha256(attention),
            "linear_share": _LINEAR_SHARE,
            "attention": asdict(_ATTENTION),
            "isolation": asdict(_ISOLATION),
            "shifts": _SHIFTS,
            "base": round(base, WEIGHT_DIGITS),
            **_LIMITS,
            "features": kept,
        },
        data,
        attention,
    )


def _write(parts: Parts) -> None:
    told, data, attention = parts
    (_PASSAGES / "network.bin").write_bytes(data)
    (_PASSAGES / "attention.bin").write_bytes(attention)
    text = json.dumps(told, ensure_ascii=False, indent=0) + "\n"
    (_PASSAGES / "weights.json").write_text(text, "utf-8")
    digest = _sha256(text.encode())
    for path, place in (
        (_PASSAGES / "scores.py", r'(?<=WEIGHTS_SHA256 = ")\w*'),
        (_MANIFEST, r'(?<=\[weights\]\nsha256 = ")\w*'),
    ):
        path.write_text(re.sub(place, digest, path.read_text("utf-8")), "utf-8")
    print(len(text), len(data), len(attention), "bytes", digest)


def _network_file(table: PieceTable, traits: Sequence[str], network: Network) -> bytes:
    """A line of JSON, the pieces with their vectors, and the weights."""
    told = {
        "about": "Vectors of word pieces, and a network over passages; see weights.json.",
        "pieces": len(table.sizes),
        "dims": DIMS,
        "hidden": len(network.bias),
        "traits": list(traits),
        "base": round(network.base, WEIGHT_DIGITS),
        "scale": SCALE,
        "length": LENGTH,
    }
    weights = np.concatenate(
        [each.astype("<f4").ravel() for each in (network.first, network.bias, network.last)]
    )
    # A bit in the last place may differ between machines; three decimals seldom do.
    floats = np.round(weights.astype(np.float64), WEIGHT_DIGITS).astype("<f4").tobytes()
    head = json.dumps(told, ensure_ascii=False).encode()
    return b"".join([head, b"\n", table.sizes, table.pieces, table.rows, floats])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
