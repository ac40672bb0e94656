"""The encoder that teaches the guard's attention network; needs torch and NumPy.

Six layers over word pieces, with published weights. Behind them is a head, which has a score for
each passage, of the mean and the maximum of its word pieces and of the start of its window. Windows
stand one after the other without padding; attention alone has a row for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from guard_packed import Numbers, Packed, from_rows
from torch import Tensor, nn
from torch.nn import functional

WIDTH, INNER, LAYERS, HEADS, PLACES = 384, 1536, 6, 12, 512
HIDDEN = 256
"""Numbers of a passage behind the encoder: the student learns them beside the score."""
_EPSILON = 1e-12  # as the published weights have been trained
_LEAST = -30.0
"""Below all that a layer gives: the maximum of no word piece."""
_DROPPED = 0.1


@dataclass(frozen=True, slots=True)
class Batch:
    words: Tensor
    """Of all windows, one after the other."""
    places: Tensor
    slots: Tensor
    """Where each stands in a table with a row for each window."""
    rows: int
    length: int
    is_filled: Tensor
    owners: Tensor
    """Number of the passage in this batch; that of no passage is last."""
    counts: Tensor
    starts: Tensor
    """Of the windows, in `words`."""
    windows: Tensor
    """Of each passage, and of none."""
    passages: Tensor
    """The numbers of the passages among all."""


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.n1, self.n2 = (nn.LayerNorm(WIDTH, eps=_EPSILON) for _ in range(2))
        self.a, self.b = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        rows, length, kind = batch.rows, batch.length, x.dtype
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
        table = x.new_zeros(rows * length, 3 * WIDTH, dtype=kind)
        table = table.index_copy(0, batch.slots, self.qkv(x).to(kind))
        parts = table.view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, attn_mask=batch.is_filled)
        seen = seen.transpose(1, 2).reshape(rows * length, WIDTH)[batch.slots]
        x = self.n1(x + functional.dropout(self.o(seen), _DROPPED, self.training))
        inner = self.b(functional.gelu(self.a(x)))
        return self.n2(x + functional.dropout(inner, _DROPPED, self.training))


class Encoder(nn.Module):
    def __init__(self, stored: Mapping[str, Numbers]) -> None:
        super().__init__()
        vocabulary = len(stored["embeddings.word_embeddings.weight"])
        self.word, self.pos = nn.Embedding(vocabulary, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.typ = nn.Parameter(torch.zeros(WIDTH))
        self.n = nn.LayerNorm(WIDTH, eps=_EPSILON)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.h1, self.h2 = nn.Linear(3 * WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
        for head in (self.h1, self.h2):
            nn.init.normal_(head.weight, std=0.03)
        nn.init.constant_(self.h2.bias, -2.0)  # most passages are ordinary
        with torch.no_grad():
            self._load(stored)

    def _load(self, stored: Mapping[str, Numbers]) -> None:
        def get(name: str) -> Tensor:
            return torch.from_numpy(from_rows(stored, name))

        self.word.weight.copy_(get("embeddings.word_embeddings.weight"))
        self.pos.weight.copy_(get("embeddings.position_embeddings.weight"))
        self.typ.copy_(get("embeddings.token_type_embeddings.weight")[0])
        for end in ("weight", "bias"):
            getattr(self.n, end).copy_(get(f"embeddings.LayerNorm.{end}"))
            for number, layer in enumerate(self.layers):
                at = f"encoder.layer.{number}"
                three = [get(f"{at}.attention.self.{n}.{end}") for n in ("query", "key", "value")]
                getattr(layer.qkv, end).copy_(torch.cat(three))
                for part, name in (
                    ("o", "attention.output.dense"),
                    ("n1", "attention.output.LayerNorm"),
                    ("a", "intermediate.dense"),
                    ("b", "output.dense"),
                    ("n2", "output.LayerNorm"),
                ):
                    getattr(getattr(layer, part), end).copy_(get(f"{at}.{name}.{end}"))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of the passages of a batch, the hidden numbers and the scores."""
        x = self.n(self.word(batch.words) + self.pos(batch.places) + self.typ)
        x = functional.dropout(x, _DROPPED, self.training)
        for layer in self.layers:
            x = layer(x, batch)
        x = x.float()
        size = len(batch.counts), WIDTH
        mean = x.new_zeros(size).index_add(0, batch.owners, x) / batch.counts[:, None]
        owners = batch.owners[:, None].expand(-1, WIDTH)
        most = x.new_full(size, _LEAST).scatter_reduce(0, owners, x, "amax")
        start = x[batch.starts][batch.windows]
        found = torch.cat([mean, most, start], 1)[:-1]
        with torch.autocast(x.device.type, enabled=False):
            hidden = self.h1(functional.dropout(found, _DROPPED, self.training))
            return hidden, self.h2(
                functional.dropout(functional.gelu(hidden), _DROPPED, self.training)
            )[:, 0]


class Windows:
    """The word pieces on the device, and batches of them."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        def put(values: Numbers, kind: torch.dtype = torch.long) -> Tensor:
            return torch.from_numpy(np.array(values)).to(device, kind)

        self.device = device
        self._words = put(packed.words.astype(np.int32), torch.int32)
        counts = put(packed.word_counts)
        passages = torch.arange(len(counts), device=device, dtype=torch.int32)
        self._owners = torch.repeat_interleave(passages, counts)
        self.windows = packed.windows.astype(np.int64)
        passages_inside = np.concatenate([[0], np.cumsum(packed.is_inside)])
        first, count = self.windows[:, 2], self.windows[:, 3]
        self.has_attack = passages_inside[first + count] > passages_inside[first]
        self._columns = [put(column) for column in self.windows.T]
        self._unknown, self._start, self._end, self._hidden = packed.special.tolist()
        self.text, self.is_inside = put(packed.text), put(packed.is_inside, torch.bool)
        self.is_attack = put(packed.is_attack, torch.float32)
        self.is_placed = put(packed.is_placed, torch.bool)

    def batch(self, chosen: Sequence[int] | Numbers, hidden: float = 0.0) -> Batch:
        device, numbers = self.device, np.asarray(chosen)
        sizes = self.windows[numbers, 1] - self.windows[numbers, 0] + 2
        total, length = int(sizes.sum()), (int(sizes.max()) + 7) // 8 * 8
        passages = int(self.windows[numbers, 3].sum())
        at = torch.as_tensor(numbers, device=device, dtype=torch.long)
        begin, end, first, count = (column[at] for column in self._columns)
        size, every = end - begin + 2, torch.arange(len(numbers), device=device)
        starts, before = torch.cumsum(size, 0) - size, torch.cumsum(count, 0) - count
        row = torch.repeat_interleave(every, size, output_size=total)
        places = torch.arange(total, device=device) - starts[row]
        source = (begin[row] + places - 1).clamp(0, len(self._words) - 1)
        words = self._words[source].long()
        if hidden:
            words = torch.where(torch.rand(total, device=device) < hidden, self._hidden, words)
        is_first, is_last = places == 0, places == size[row] - 1
        words = torch.where(is_first, self._start, torch.where(is_last, self._end, words))
        owners = self._owners[source].long() - first[row] + before[row]
        owners = torch.where(is_first | is_last, passages, owners)
        windows = torch.repeat_interleave(every, count, output_size=passages)
        return Batch(
            words=words,
            places=places,
            slots=row * length + places,
            rows=len(numbers),
            length=length,
            is_filled=(torch.arange(length, device=device)[None] < size[:, None])[:, None, None],
            owners=owners,
            counts=torch.bincount(owners, minlength=passages + 1).clamp(min=1).float(),
            starts=starts,
            windows=torch.cat([windows, windows[:1]]),
            passages=torch.arange(passages, device=device) - before[windows] + first[windows],
        )
