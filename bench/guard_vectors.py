"""The vectors of word pieces that the guard's classifier reads, from a pinned source.

The source is in bench/guard_data/MANIFEST.toml. Of its pieces, those in lower case are kept; of
each vector the first numbers, as signed bytes: the vectors were trained so that the first numbers
carry most.
"""

from __future__ import annotations

import json
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DIMS = 192
MAX_PIECE_BYTES = 24  # as in vectors.c
_STEPS = 24
"""Steps of a signed byte in one standard deviation."""
SCALE = 1 / _STEPS
LENGTH = 2.0
"""Of the vectors that the network sees: how long a mean is depends on how many pieces it has."""
_START = "\u2581"
"""What the source writes before a piece that begins a word."""


@dataclass(frozen=True, slots=True)
class PieceTable:
    """As `cellwall.guard.ctext.vectors.PieceVectors` takes it."""

    sizes: bytes
    pieces: bytes
    rows: bytes


def read_table(archive: Path) -> PieceTable:
    """The table from the source archive of wordllama."""
    with tarfile.open(archive) as opened:
        files = {member.name.rpartition("/")[2]: member for member in opened if member.isfile()}
        vocabulary = json.loads(_bytes(opened, files["l2_supercat_tokenizer_config.json"]))
        stored = _bytes(opened, files["l2_supercat_256.safetensors"])
    (head,) = struct.unpack_from("<Q", stored)
    told = json.loads(stored[8 : 8 + head])["embedding.weight"]
    values = np.frombuffer(stored, np.float16, offset=8 + head).reshape(told["shape"])
    numbers: dict[str, int] = vocabulary["model"]["vocab"]
    kept = [
        (piece.replace(_START, " ").encode(), number)
        for piece, number in sorted(numbers.items(), key=lambda each: each[1])
        if _is_kept(piece)
    ]
    kept = [each for each in kept if len(each[0]) <= MAX_PIECE_BYTES]
    vectors = values[[number for _, number in kept], :DIMS].astype(np.float64)
    steps = np.round(vectors / vectors.std() * _STEPS)
    return PieceTable(
        bytes(len(piece) for piece, _ in kept),
        b"".join(piece for piece, _ in kept),
        np.clip(steps, -127, 127).astype(np.int8).tobytes(),
    )


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stored = archive.extractfile(member)
    return stored.read() if stored else b""


def _is_kept(piece: str) -> bool:
    """Letters in lower case, one digit, or one mark."""
    core = piece.removeprefix(_START)
    if not core or core != core.lower() or _START in core:
        return False
    return core.isalpha() or len(core) == 1
