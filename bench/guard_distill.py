"""Trains the guard's attention network on what the encoder says of passages, and on the labels.

Of each text the candidates that the encoder finds strongest are read, some others, and passages of
all texts: the guard reads the strongest, and what is not read in training would be scored by
chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from guard_descent import Descent, Say
from guard_packed import Numbers, Packed
from guard_sampling import UNKNOWN, labels_of, passages_of_steps
from guard_student import Passages, Student
from torch import Tensor
from torch.nn import functional

_RATE, _DECAY, _MEMORY = 2e-3, 0.05, (0.9, 0.98)
_WARM, _LEAST_RATE = 0.03, 0.005
_HIDDEN_PIECES = 0.08
_LIMIT = 6.0
"""What the encoder says beyond it is as certain."""
_OF_SCORES, _OF_HIDDEN, _OF_LABELS = 0.1, 1.5, 0.3
"""Weights of the losses, beside that of the encoder's probability."""
_OF_ATTACKS = 2.0
_SMOOTH = 0.01
_SAMPLE = 20_000
_LEAST_SPREAD = 0.05
"""The encoder's hidden numbers are scaled by their spread, which is no less than this."""
_AT_ONCE = 1024
_NONE = -20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What an encoder says, for the students of its fold."""

    fold: int
    scores: Numbers
    hidden: Numbers


def train(packed: Packed, lesson: Lesson, seed: int, steps: int, device: str, say: Say) -> Student:
    torch.manual_seed(seed)
    data = Passages(packed, torch.device(device))
    is_fast = data.device.type == "cuda"
    model = Student(data.vectors).to(data.device).train()
    scores = torch.from_numpy(lesson.scores).to(data.device)
    hidden = torch.from_numpy(lesson.hidden).to(data.device)
    sample = hidden[torch.randint(0, len(hidden), (_SAMPLE,), device=data.device)].float()
    mean, spread = sample.mean(0), sample.std(0) + _LEAST_SPREAD
    labels = torch.from_numpy(labels_of(packed, lesson.scores)).to(data.device)
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": _DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=_RATE,
        betas=_MEMORY,
        fused=is_fast,
    )
    batches = passages_of_steps(packed, data.sizes, lesson.scores, lesson.fold, seed)
    descent = Descent(model, optimizer, steps)
    for step, chosen in enumerate(islice(batches, steps)):
        done = step / steps
        wave = 0.5 + 0.5 * np.cos(np.pi * done)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (min(1, done / _WARM) * wave + _LEAST_RATE)
        with torch.autocast(data.device.type, torch.bfloat16, enabled=is_fast):
            numbers, found = model(data.windows(chosen, _HIDDEN_PIECES))
        at = torch.from_numpy(chosen).to(data.device)
        loss = _loss(found, scores[at].clamp(-_LIMIT, _LIMIT), labels[at])
        taught = (hidden[at].float() - mean) / spread
        loss = loss + _OF_HIDDEN * functional.smooth_l1_loss(numbers, taught)
        descent.take(loss, f"student {lesson.fold} seed {seed}", say)
    return model.eval()


def _loss(found: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
    of_taught = functional.binary_cross_entropy_with_logits(found, torch.sigmoid(taught))
    of_taught = of_taught + _OF_SCORES * functional.smooth_l1_loss(found, taught)
    smooth = labels.clamp(min=0).float() * (1 - 2 * _SMOOTH) + _SMOOTH
    of_labels = functional.binary_cross_entropy_with_logits(found, smooth, reduction="none")
    weight = torch.where(labels > 0, _OF_ATTACKS, 1.0) * (labels != UNKNOWN)
    return of_taught + _OF_LABELS * (of_labels * weight).mean()


@torch.no_grad()
def score(packed: Packed, model: Student, passages: Numbers, device: str) -> Numbers:
    """Of these passages; one without pieces has the lowest score."""
    data, found = Passages(packed, torch.device(device)), np.full(len(passages), _NONE, np.float16)
    order = np.nonzero(packed.piece_counts[passages] > 0)[0]
    order = order[np.argsort(data.sizes[passages[order]], kind="stable")]
    for at in range(0, len(order), _AT_ONCE):
        some = order[at : at + _AT_ONCE]
        kind = data.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            _, scores = model(data.windows(passages[some]))
        found[some] = scores.half().cpu().numpy()
    return found
