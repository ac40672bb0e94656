"""Trains the encoder on the texts for training, and scores all passages with it; needs torch.

A text counts by its strongest passage. Where the place of an attack is known, only its passages may
be the strongest, and the others count as ordinary, as in guard_network.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from guard_descent import Descent, Say
from guard_encoder import HIDDEN, LAYERS, Encoder, Windows
from guard_packed import Packed
from guard_sampling import Sampler
from torch import Tensor
from torch.nn import functional

_HIDDEN_WORDS = 0.1
"""Share of word pieces that are hidden in training, so that no single word decides."""
_BATCH = 64
"""Texts of a step."""
_RATE, _OF_LOWER, _RATE_OF_HEAD, _DECAY = 1.5e-4, 0.85, 1e-3, 0.01
"""Each layer learns less than the one above it, so that what it knows of language is kept."""
_MEMORY = 0.9, 0.98
_WARM, _LEAST_RATE = 0.05, 0.01
_WEIGHT_OF_ORDINARY, _WEIGHT_OF_PASSAGES = 3.0, 2.0
_SMOOTH = 0.01
"""A label is this far from certain."""
_WINDOWS = 2
"""Of longer texts some windows are read in a step."""
_OF_ATTACK, _OF_ORDINARY = 4, 2
_NONE, _LEAST = -1e4, -30.0
_WORDS_AT_ONCE = 50_000


def train(packed: Packed, data: Windows, fold: int, steps: int, say: Say) -> Encoder:
    """Of the texts that the fold knows."""
    device, chance = data.device, random.Random(fold)
    torch.manual_seed(fold)
    model = Encoder(packed.encoder).to(device).train()
    optimizer = torch.optim.AdamW(_groups(model), betas=_MEMORY, fused=device.type == "cuda")
    sampler, order = Sampler(packed, fold, chance), list[int]()
    descent = Descent(model, optimizer, steps)
    for step in range(steps):
        if len(order) < _BATCH:
            order += sampler.round()
        texts, order = order[:_BATCH], order[_BATCH:]
        windows = [each for text in texts for each in _chosen(packed, data, text, chance)]
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = group["most"] * (min(1, done / _WARM) * (1 - done) + _LEAST_RATE)
        batch = data.batch(windows, _HIDDEN_WORDS)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            _, scores = model(batch)
        loss = loss_of(scores, batch.passages, data)
        descent.take(loss, f"teacher {fold}", say)
    return model.eval()


def _groups(model: Encoder) -> list[dict[str, object]]:
    """Few groups of parameters: a step of each costs time."""
    groups: dict[tuple[float, float], dict[str, object]] = {}
    for name, values in model.named_parameters():
        part, *rest = name.split(".")
        depth = int(rest[0]) + 1 if part == "layers" else 0
        rate = _RATE_OF_HEAD if part in {"h1", "h2"} else _RATE * _OF_LOWER ** (LAYERS - depth)
        decay = _DECAY if values.ndim > 1 else 0.0
        new = {"params": list[Tensor](), "lr": rate, "most": rate, "weight_decay": decay}
        own = groups.setdefault((rate, decay), new)["params"]
        assert isinstance(own, list)
        own.append(values)
    return list(groups.values())


def _chosen(packed: Packed, data: Windows, text: int, chance: random.Random) -> Sequence[int]:
    """Windows of a text."""
    every = range(*packed.first_window[text : text + 2].tolist())
    if len(every) <= _WINDOWS:
        return every
    if not packed.is_placed[text]:
        most = _OF_ATTACK if packed.is_attack[text] else _OF_ORDINARY
        return chance.sample(every, min(len(every), most))
    inside = [each for each in every if data.has_attack[each]]
    beside = [each for each in every if not data.has_attack[each]]
    return [*inside[:_WINDOWS], *chance.sample(beside, min(1, len(beside)))]


def loss_of(scores: Tensor, passages: Tensor, data: Windows) -> Tensor:
    """The strongest passage of each text, which lies in the attack where its place is known; and
    all ordinary passages."""
    texts = data.text[passages]
    is_attack, is_inside = data.is_attack[texts] > 0, data.is_inside[passages]
    is_outside = data.is_placed[texts] & ~is_inside
    unique, owner = torch.unique(texts, return_inverse=True)
    able = torch.where(is_outside, _NONE, scores)
    most = scores.new_full((len(unique),), _NONE).scatter_reduce(0, owner, able, "amax")
    is_known = (most > _NONE * 0.9).float()
    label = data.is_attack[unique]
    weight = torch.where(label > 0, 1.0, _WEIGHT_OF_ORDINARY) * is_known
    smooth = label * (1 - 2 * _SMOOTH) + _SMOOTH
    each = functional.binary_cross_entropy_with_logits(
        most.clamp(min=_LEAST), smooth, reduction="none"
    )
    of_texts = (each * weight).sum() / is_known.sum().clamp(min=1)
    is_ordinary = (~is_attack | is_outside).float()
    of_passages = (functional.softplus(scores) * is_ordinary).sum() / is_ordinary.sum().clamp(min=1)
    return of_texts + _WEIGHT_OF_PASSAGES * of_passages


@torch.no_grad()
def score_all(model: Encoder, data: Windows, passages: int) -> tuple[Tensor, Tensor]:
    """Hidden numbers and scores of all passages."""
    device = data.device
    scores = torch.zeros(passages, device=device)
    hidden = torch.zeros(passages, HIDDEN, dtype=torch.float16, device=device)
    sizes = data.windows[:, 1] - data.windows[:, 0] + 2
    order, at = np.argsort(sizes, kind="stable"), 0
    while at < len(order):
        # As many as the longest of them allows: sizes grow, so the last one is the longest.
        count = max(1, _WORDS_AT_ONCE // max(8, int(sizes[order[at]])))
        last = min(len(order) - 1, at + count - 1)
        count = max(1, _WORDS_AT_ONCE // max(8, int(sizes[order[last]])))
        batch = data.batch(order[at : at + count])
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            numbers, found = model(batch)
        scores[batch.passages], hidden[batch.passages] = found, numbers.half()
        at += count
    return hidden, scores
