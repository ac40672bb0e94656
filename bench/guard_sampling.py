"""What a round of training of the guard's attention network takes; needs NumPy alone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from guard_packed import Numbers, Packed

_STRONGEST, _OTHERS = 5, 3
"""Candidates of a text that are read in a round."""
_OF_ALL = 4
"""To so many candidates one passage of all texts."""
_PIECES_AT_ONCE, _APART, _ROOM = 24_000, 400, 8
"""Of a step; windows of a step differ little in size, and each has room for longer ones."""
_SHUFFLED = 6.0
"""Windows are sorted by their size and up to this: a step has other neighbours in each round."""
UNKNOWN = -1
_OF_A_FAMILY = 700
_MORE = {
    "own": 1600,
    "own bare": 300,
    "own requests": 500,
    "own direct": 900,
    "own tools": 700,
    "own forms": 1200,
    "near plain_forms": 600,
    "carrier cut": 2000,
    "carrier snippet": 800,
    "carrier code": 700,
    "carrier record": 700,
    "prompts roleplay": 1200,
    "near about": 600,
    "near email": 500,
    "near story": 600,
    "carrier agents": 800,
    "carrier readme": 600,
    "carrier documentation": 800,
    "purple_multilingual": 400,
}
"""Fewer of the grammars than guard_network takes: an encoder learns their forms by heart."""


class Sampler:
    """Rounds over the texts that a fold may be trained on, so many of each family; of a text that
    was drawn twice, one of the two."""

    def __init__(self, packed: Packed, fold: int, chance: random.Random) -> None:
        self._chance, self._groups = chance, dict[str, list[int]]()
        is_known, counts = packed.is_known(fold), packed.passage_counts
        for text, family in enumerate(packed.families[: packed.told["once"]]):
            if is_known[text] and counts[text]:
                self._groups.setdefault(family, []).append(text)
        self._again = {one: other for one, other in packed.told["again"] if counts[other]}

    def round(self) -> list[int]:
        chance = self._chance
        order = [
            text
            for family in sorted(self._groups)
            for text in chance.sample(self._groups[family], self._size(family))
        ]
        order = [chance.choice((text, self._again.get(text, text))) for text in order]
        chance.shuffle(order)
        return order

    def _size(self, family: str) -> int:
        return min(len(self._groups[family]), _MORE.get(family, _OF_A_FAMILY))


def labels_of(packed: Packed, scores: Numbers) -> Numbers:
    """Of passages: ordinary in ordinary texts and outside of a known place of an attack; of an
    attack, the candidate that the encoder finds strongest. Of the others nothing is known."""
    text = packed.text
    is_outside = packed.is_placed[text] & ~packed.is_inside
    labels = np.full(len(text), UNKNOWN, np.int8)
    labels[~packed.is_attack[text] | is_outside] = 0
    able = np.nonzero(packed.is_attack[text] & packed.is_candidate & ~is_outside)[0]
    order = able[np.lexsort((-scores[able], text[able]))]
    is_first = np.diff(text[order], prepend=-1) > 0
    labels[order[is_first]] = 1
    return labels


def passages_of_steps(
    packed: Packed, sizes: Numbers, scores: Numbers, fold: int, seed: int
) -> Iterator[Numbers]:
    """Without end: the numbers of the passages of each step. `sizes`: of their windows; `scores`:
    of the encoder."""
    chance, noise = random.Random(seed), np.random.default_rng(seed)
    sampler = Sampler(packed, fold, chance)
    is_usable = packed.piece_counts > 0
    candidates = np.nonzero(packed.is_candidate & is_usable)[0]
    first = np.searchsorted(candidates, packed.first)
    known = np.nonzero(packed.is_known(fold)[packed.text] & is_usable)[0]
    while True:
        round_ = []
        for text in sampler.round():
            own = candidates[first[text] : first[text + 1]]
            if len(own) > _STRONGEST + _OTHERS:
                own = own[np.argsort(-scores[own], kind="stable")]
                others = noise.choice(own[_STRONGEST:], _OTHERS, replace=False)
                own = np.concatenate([own[:_STRONGEST], others])
            round_.append(own)
        chosen = np.concatenate(round_)
        chosen = np.concatenate([chosen, noise.choice(known, len(chosen) // _OF_ALL)])
        blurred = sizes[chosen] + noise.random(len(chosen)) * _SHUFFLED
        chosen = chosen[np.argsort(blurred, kind="stable")]
        batches, at = [], 0
        while at < len(chosen):
            size = int(sizes[chosen[min(len(chosen) - 1, at + _APART)]]) + _ROOM
            batches.append(chosen[at : at + _PIECES_AT_ONCE // size])
            at += _PIECES_AT_ONCE // size
        chance.shuffle(batches)
        yield from batches
