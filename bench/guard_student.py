"""The guard's attention network as torch has it, and the windows of pieces that it reads.

The names of its weights are those that guard_attention makes the shipped file of.
"""

from __future__ import annotations

import numpy as np
import torch
from guard_encoder import HIDDEN
from guard_packed import VECTOR_STEPS, Numbers, Packed
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, INNER, HEAD = 128, 3, 256, 32
BEFORE, OWN, AFTER = 16, 48, 12
"""Pieces of a window, as the guard reads them: of a passage with more than OWN, none after it."""
_LEAST_PASSAGE = -5.0
"""The maximum over the pieces of a passage is no less."""
_DROPPED, _DROPPED_IN_HEAD = 0.05, 0.1
_NO_BEFORE, _NO_AFTER = 0.12, 0.12
"""Shares of the windows of training without the pieces before, and after: texts may begin or end
anywhere."""
Window = tuple[Tensor, Tensor, Tensor, Tensor]
"""Pieces, places, what belongs to the passage, and what is there at all."""


class Student(nn.Module):
    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.inp = nn.Linear(vectors.shape[1], WIDTH)
        self.pos, self.typ = nn.Embedding(BEFORE + OWN + AFTER + 1, WIDTH), nn.Embedding(2, WIDTH)
        self.n0, self.nf = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for places in (self.pos, self.typ):
            nn.init.normal_(places.weight, std=0.05)
        self.l = nn.ModuleList(_layer() for _ in range(LAYERS))
        self.h, self.o = nn.Linear(2 * WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
        nn.init.constant_(self.o.bias, -2.0)  # most passages are ordinary

    def forward(self, window: Window) -> tuple[Tensor, Tensor]:
        """The hidden numbers and the score of each passage."""
        pieces, places, is_own, is_there = window
        x = self.inp(self.vectors[pieces]) + self.pos(places) + self.typ(is_own.long())
        x = self.n0(x)
        rows, length, _ = x.shape
        mask = is_there[:, None, None]
        for n1, qkv, o, n2, a, c in self.l:
            parts = qkv(n1(x)).view(rows, length, 3, WIDTH // HEAD, HEAD).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
            seen = seen.transpose(1, 2).reshape(rows, length, WIDTH)
            x = x + functional.dropout(o(seen), _DROPPED, self.training)
            x = x + functional.dropout(c(functional.relu(a(n2(x)))), _DROPPED, self.training)
        x, own = self.nf(x).float(), is_own[..., None]
        mean = (x * own).sum(1) / own.sum(1).clamp(min=1)
        most = torch.where(own, x, 2 * _LEAST_PASSAGE).amax(1).clamp(min=_LEAST_PASSAGE)
        with torch.autocast(x.device.type, enabled=False):
            hidden = self.h(torch.cat([mean, most], 1))
            last = functional.dropout(functional.relu(hidden), _DROPPED_IN_HEAD, self.training)
            return hidden, self.o(last)[:, 0]


def _layer() -> nn.ModuleList:
    return nn.ModuleList(
        [
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, INNER),
            nn.Linear(INNER, WIDTH),
        ]
    )


class Passages:
    """The pieces on the device, and windows of them: all pieces of a text are one list."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        self.device = device
        counts = packed.piece_counts.astype(np.int64)
        ends = np.cumsum(counts)
        around = np.concatenate([[0], ends])
        text_start, text_end = (
            around[packed.first[at]][packed.text] for at in (slice(None, -1), slice(1, None))
        )
        start, own_end = ends - counts, np.minimum(ends, ends - counts + OWN)
        first = np.maximum(text_start, start - BEFORE)
        last = np.where(counts > OWN, own_end, np.minimum(text_end, own_end + AFTER))
        self.sizes = last - first
        """Of the windows, by passage; on the processor, which puts those of a size together."""
        self._pieces = self._put(packed.pieces.astype(np.int32))
        self._start, self._own_end = self._put(start), self._put(own_end)
        self._first, self._last = self._put(first), self._put(last)
        self.vectors = self._put(packed.vectors.astype(np.float32) / VECTOR_STEPS)

    def _put(self, values: Numbers) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def windows(self, passages: Numbers, hidden: float = 0.0) -> Window:
        """With `hidden`, that share of the pieces is left out, as in training."""
        device, length = self.device, (int(self.sizes[passages].max()) + 7) // 8 * 8
        at = self._put(passages)
        start, end, first, last = (
            each[at] for each in (self._start, self._own_end, self._first, self._last)
        )
        if hidden:
            chance = torch.rand(len(at), device=device)
            first = torch.where(chance < _NO_BEFORE, start, first)
            last = torch.where(chance > 1 - _NO_AFTER, end, last)
        number = first[:, None] + torch.arange(length, device=device)[None]
        is_there = number < last[:, None]
        if hidden:
            is_kept = torch.rand(number.shape, device=device) > hidden
            is_there = is_there & (is_kept | (number == start[:, None]))
        is_own = (number >= start[:, None]) & (number < end[:, None]) & is_there
        places = (number - start[:, None] + BEFORE).clamp(0, BEFORE + OWN + AFTER)
        pieces = self._pieces[number.clamp(max=len(self._pieces) - 1)].long()
        return pieces, places, is_own, is_there
