"""The texts of training as numbers, in a few files, for a machine that has torch and NumPy alone.

`guard_attention_texts` writes them, `guard_attention_train` reads them. Nothing of Cellwall is
imported here, because the machine that trains has none of it.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Numbers = np.ndarray

VECTOR_STEPS = 24
"""Steps of a signed byte in one standard deviation, as in guard_vectors."""
_WORD_LEVELS, _WEIGHT_LEVELS = 31, 63
"""Steps of the encoder's weights on each side of zero, by row: training moves them by more than
half a step, and with 127 steps the files are too large for the way to the machine."""
_WORDS = "word_embeddings"
_SCALE = ".scale"
_STREAMS = ("words", "pieces")
_TOLD, _ENCODER, _ARRAYS = "told", "encoder", "arrays"
_DICTIONARY = 1 << 26
_SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Texts for training, each once; then those that are drawn again; then the measured sets."""

    words: Numbers
    """Word pieces of the encoder, of all passages one after the other."""
    pieces: Numbers
    """Pieces of the shipped vectors, likewise."""
    word_counts: Numbers
    """Of each passage."""
    piece_counts: Numbers
    is_candidate: Numbers
    is_inside: Numbers
    """Whether a passage lies in the attack, where its place is known."""
    passage_counts: Numbers
    """Of each text."""
    is_attack: Numbers
    is_placed: Numbers
    windows: Numbers
    """First word piece, end, first passage and number of passages of each window of the encoder."""
    first_window: Numbers
    """Of each text, and the end."""
    special: Numbers
    """Numbers of the word pieces for what is not known, the start, the end and what is hidden."""
    vectors: Numbers
    """Of the pieces, as signed bytes."""
    encoder: Mapping[str, Numbers]
    told: Mapping[str, Any]
    """`families` of the texts, and their `numbers` in the corpus followed by the measured sets;
    `once`, `trained`: how many texts for training there are, without and with those drawn again;
    `again`: pairs of a text and its other draw; `folds`: the families that each leaves out."""

    @cached_property
    def first(self) -> Numbers:
        """Passage of each text, and the end."""
        return np.concatenate([[0], np.cumsum(self.passage_counts.astype(np.int64))])

    @cached_property
    def text(self) -> Numbers:
        """Of each passage."""
        return np.repeat(np.arange(len(self.passage_counts)), self.passage_counts)

    @property
    def families(self) -> list[str]:
        found: list[str] = self.told["families"]
        return found

    def left_out(self, fold: int) -> frozenset[str]:
        return frozenset(self.told["folds"][fold])

    def is_known(self, fold: int) -> Numbers:
        """Of each text, whether a model of this fold may be trained on it."""
        out, trained = self.left_out(fold), self.told["trained"]
        return np.array(
            [at < trained and family not in out for at, family in enumerate(self.families)]
        )

    def scored(self) -> Numbers:
        """The texts whose scores are kept: of measured sets, authors and packages, each once."""
        once, trained = self.told["once"], self.told["trained"]
        heads = ("written ", "near written ", "found ")
        return np.array(
            [
                at
                for at, family in enumerate(self.families)
                if at >= trained or (at < once and family.startswith(heads))
            ],
            np.int64,
        )


def by_rows(name: str, weights: Numbers) -> dict[str, Numbers]:
    """A matrix as signed bytes with a scale for each row; other weights as they are."""
    weights = weights.astype(np.float32)
    if weights.ndim != 2:
        return {name: weights}
    levels = _WORD_LEVELS if _WORDS in name else _WEIGHT_LEVELS
    scale = np.abs(weights).max(1, keepdims=True) / levels + _SMALLEST
    return {
        name: np.round(weights / scale).astype(np.int8),
        name + _SCALE: scale[:, 0].astype(np.float32),
    }


def from_rows(stored: Mapping[str, Numbers], name: str) -> Numbers:
    """What `by_rows` was given, nearly."""
    weights = stored[name].astype(np.float32)
    scale = stored.get(name + _SCALE)
    return weights if scale is None else weights * scale[:, None]


def write(packed: Packed, folder: Path) -> dict[str, int]:
    """The sizes of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    apart = (*_STREAMS, _ENCODER, _TOLD)
    arrays = {
        each.name: getattr(packed, each.name) for each in fields(packed) if each.name not in apart
    }
    parts = {
        **{name: getattr(packed, name).astype("<u2").tobytes() for name in _STREAMS},
        _ARRAYS: _npz(arrays),
        _ENCODER: _npz(packed.encoder),
        _TOLD: json.dumps(packed.told).encode(),
    }

    def store(name: str) -> int:
        # Numbers of 16 bits: the place of a byte in its number tells more than the byte before it.
        pairs = {"lc": 0, "lp": 1, "pb": 1} if name in _STREAMS else {}
        lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": _DICTIONARY, **pairs}
        return (folder / f"{name}.xz").write_bytes(lzma.compress(parts[name], filters=[lzma2]))

    with ThreadPoolExecutor() as pool:
        return dict(zip(parts, pool.map(store, parts), strict=True))


def read(folder: Path) -> Packed:
    def load(name: str) -> bytes:
        return lzma.decompress((folder / f"{name}.xz").read_bytes())

    names = (*_STREAMS, _ARRAYS, _ENCODER, _TOLD)
    with ThreadPoolExecutor() as pool:
        parts = dict(zip(names, pool.map(load, names), strict=True))
    return Packed(
        **{name: np.frombuffer(parts[name], "<u2") for name in _STREAMS},
        **_arrays(parts[_ARRAYS]),
        encoder=_arrays(parts[_ENCODER]),
        told=json.loads(parts[_TOLD]),
    )


def _npz(arrays: Mapping[str, Numbers]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _arrays(data: bytes) -> dict[str, Numbers]:
    return dict(np.load(io.BytesIO(data)))
