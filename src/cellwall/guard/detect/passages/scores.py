"""The classifier of passages: a linear model and two networks together, and the check of their
files (GRD-10).

The linear model knows classes of words and their pairs. The network sees the vectors of a passage,
of its neighbours and of the rest of the text, so that a break with the surroundings counts, and the
traits of the passage. Each errs on other attacks than the other, so a score is a mean of both. The
strongest passages of a text are read once more, in the order of their words (`attention.py`).
`weights.json` is checked by hash, and the other files by hashes in it: a model that cannot be
loaded is an error, never a silent absence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cellwall.guard.ctext.passages import Passages, SurroundingsRecord
from cellwall.guard.ctext.placing import Placing
from cellwall.guard.ctext.vectors import NetworkShape, PassageNetwork, PieceVectors
from cellwall.guard.detect.passages.attention import (
    AttentionModel,
    AttentionSettings,
    parse_network,
)
from cellwall.guard.detect.passages.isolation import IsolationSettings
from cellwall.guard.detect.passages.linear import WEIGHT_DIGITS, LinearModel
from cellwall.guard.detect.shipped_data import damaged, read_shipped

WEIGHTS_SHA256 = "1a6ff352a0e2b64626c2259a972c36e5a9dc6e670994c3fb6c65dba3d7eb67d5"
"""Of weights.json; `bench/guard_train.py --write` writes it, and bench/guard_data/MANIFEST.toml has
it too."""

_PACKAGE = "cellwall.guard.detect.passages"
FILES = ("weights.json", "network.bin", "attention.bin", "lexicon.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordNetwork:
    """The network, the vectors of word pieces and the traits that it takes."""

    vectors: PieceVectors
    scale: float
    """Of the vectors."""
    network: PassageNetwork
    traits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageModel:
    """All models, and the scores from which a passage is reported."""

    linear: LinearModel
    network: WordNetwork
    attention: AttentionModel
    placing: Placing
    """The tables of traits of the linear model and the network."""
    linear_share: float
    """How much of a score is the linear model's; the rest is the network's. That of a passage that
    was read once more is mixed with that of the attention network."""
    isolation: IsolationSettings
    shifts: Mapping[str, float]
    """What a passage must score more, by the size of its text."""
    denial: float
    """Below this, the classifier contradicts what a rule has found."""
    weak: float
    assent: float
    """From here on, the classifier supports what a rule has found."""
    likely: float
    certain: float

    def scores(self, parts: Iterable[tuple[Passages, SurroundingsRecord]]) -> list[list[float]]:
        """Of the passages of each part of a text that may instruct a model, each by itself."""
        read, found = list[Passages](), list[list[float]]()
        for passages, text in parts:
            read.append(passages)
            found.append(self.first_scores(passages, text))
        return [
            [round(score, WEIGHT_DIGITS) for score in own]
            for own in self.attention.moved(read, found)
        ]

    def first_scores(self, passages: Passages, text: SurroundingsRecord) -> list[float]:
        """By the linear model and the network, which do not see the order of words."""
        if not passages.chosen:
            return []
        placed = self.placing.place(passages, text)
        sums = self.network.vectors.sums_of(passages)
        by_network = self.network.network.scores(sums, passages.chosen, placed.numbers, placed.ends)
        share, linear = self.linear_share, self.linear.score
        return [
            round(share * linear(weight) + (1 - share) * other, WEIGHT_DIGITS)
            for weight, other in zip(placed.weights, by_network, strict=True)
        ]

    def shift(self, shape: Iterable[str]) -> float:
        """What a passage of such a text must score more."""
        return sum(self.shifts.get(name, 0.0) for name in shape)


@cache
def model() -> PassageModel:
    """The shipped model."""
    return parse_model(*(read_shipped(_PACKAGE, name) for name in FILES))


def parse_model(weights: bytes, network: bytes, attention: bytes, lexicon: bytes) -> PassageModel:
    """The model, or `CellwallError` if the data is not what was trained."""
    if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
        raise damaged()
    told: dict[str, Any] = json.loads(weights)
    # Attack: without its words the model finds nothing, and says so of every text.
    for name, data in (
        ("lexicon_sha256", lexicon),
        ("network_sha256", network),
        ("attention_sha256", attention),
    ):
        if hashlib.sha256(data).hexdigest() != told[name]:
            raise damaged()
    return parse_parts(told, network, attention)


def parse_parts(told: Mapping[str, Any], network: bytes, attention: bytes) -> PassageModel:
    """The model of parts whose hashes were checked."""
    limits = {name: told[name] for name in ("denial", "weak", "assent", "likely", "certain")}
    linear, words = LinearModel(told["features"], told["base"]), _parse_network(network)
    parsed = parse_network(attention, words.scale)
    return PassageModel(
        linear=linear,
        network=words,
        attention=AttentionModel(
            network=parsed.network,
            vectors=words.vectors,
            settings=AttentionSettings(**told["attention"]),
            own=parsed.shape.own,
        ),
        placing=linear.placing(words.traits),
        linear_share=told["linear_share"],
        isolation=IsolationSettings(**told["isolation"]),
        shifts=told["shifts"],
        **limits,
    )


def _parse_network(data: bytes) -> WordNetwork:
    """A line of JSON, the sizes of the word pieces, the pieces, a row of signed bytes for each, and
    the weights of the network as floats of 32 bits, little-endian."""
    line, _, rest = data.partition(b"\n")
    told = json.loads(line)
    count, dims = told["pieces"], told["dims"]
    rows_at = count + sum(rest[:count])
    weights_at = rows_at + count * dims
    shape = NetworkShape(dims=dims, hidden=told["hidden"], traits=len(told["traits"]))
    return WordNetwork(
        vectors=PieceVectors(rest[:count], rest[count:rows_at], rest[rows_at:weights_at], dims),
        scale=told["scale"],
        network=PassageNetwork(
            shape,
            rest[weights_at:],
            base=told["base"],
            scale=told["scale"],
            length=told["length"],
        ),
        traits={name: number for number, name in enumerate(told["traits"])},
    )
