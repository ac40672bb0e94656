"""Steps of training, as the encoder and the student of the guard take them; needs torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

_LOGGED = 500
Say = Callable[..., None]


class Descent:
    """Moves a model by the gradients of its losses, and tells their mean now and then."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self._model, self._optimizer, self._steps = model, optimizer, steps
        self._losses = list[Tensor]()

    def take(self, loss: Tensor, name: str, say: Say) -> None:
        """One step; `name`: who learns."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=True)
        self._optimizer.step()
        self._losses.append(loss.detach())
        step = len(self._losses)
        if step % _LOGGED == 0 or step == self._steps:
            mean = float(torch.stack(self._losses[-_LOGGED:]).mean())
            say(f"{name}: step {step} of {self._steps}, loss {mean:.4f}")
