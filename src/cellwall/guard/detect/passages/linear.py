"""A linear model over the named features of passages (GRD-10).

Features are named by `features.describe`; here they become tables in which C adds them up without
making their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cellwall.guard.ctext.placing import Placing, PlacingTable
from cellwall.guard.detect.passages.features import CARRIED, is_paired
from cellwall.guard.detect.passages.traits import trait_numbers

WEIGHT_DIGITS = 3
"""Decimals of each weight. Weights are added up as whole numbers: the last digit of a sum of floats
depends on their order, and a text at a limit would be found in one process and not in the next."""

_SCALE: int = 10**WEIGHT_DIGITS


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A weight for each feature."""

    weights: Mapping[str, float]
    base: float

    def score(self, weight: int) -> float:
        """Of a passage whose features weigh so many thousandths."""
        return round(self.base + weight / _SCALE, WEIGHT_DIGITS)

    def placing(self, network: Mapping[str, int]) -> Placing:
        """The tables for C; `network`: the traits that a network takes, by name."""
        traits = trait_numbers()
        pairs = {name: number for number, name in enumerate(filter(is_paired, traits.numbers))}
        carried = {name: number for number, name in enumerate(CARRIED)}
        beside = {f"beside {name}": number for name, number in carried.items()}

        def known(table: Mapping[str, int], numbers: Mapping[str, int]) -> dict[int, int]:
            return {numbers[name]: value for name, value in table.items() if name in numbers}

        single = {name: self._whole(name) for name in self.weights}
        return Placing(
            PlacingTable(
                own=known(single, traits.numbers),
                beside=known(single, beside),
                text=known(single, traits.of_text),
                own_numbers=known(network, traits.numbers),
                beside_numbers=known(network, beside),
                text_numbers=known(network, traits.of_text),
                carried=[traits.numbers[name] for name in CARRIED],
                pairs={traits.numbers[name]: number for name, number in pairs.items()},
                both=dict(self._joined(" & ", pairs, pairs, is_sorted=True)),
                within=dict(self._joined(" in ", pairs, traits.of_text)),
                by=dict(self._joined(" by ", pairs, carried)),
            )
        )

    def _joined(
        self,
        joint: str,
        lefts: Mapping[str, int],
        rights: Mapping[str, int],
        *,
        is_sorted: bool = False,
    ) -> Iterator[tuple[tuple[int, int], int]]:
        """The weights of two traits together; sorted ones have one name for both orders."""
        for name in self.weights:
            left, found, right = name.partition(joint)
            if found and left in lefts and right in rights and not (is_sorted and left >= right):
                yield (lefts[left], rights[right]), self._whole(name)

    def _whole(self, name: str) -> int:
        return round(self.weights[name] * _SCALE)
