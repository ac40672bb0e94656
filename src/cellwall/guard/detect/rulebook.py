"""All rules of all packs, asked at once: only those are run whose words stand in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellwall.core.errors import ConfigError
from cellwall.guard.detect.rule_packs import Pack, Rule
from cellwall.guard.detect.spots import Spot, without_flood
from cellwall.guard.detect.sweep import Sweep
from cellwall.parsing.budget import checkpoint


class RuleBook:
    """Rules by their words."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        owners: dict[str, str] = {}
        self._rules: list[Rule] = []
        self._by_word: dict[bytes, list[int]] = {}
        for pack in packs:
            for rule in pack.rules:
                if rule.id in owners:
                    raise ConfigError(
                        f"{pack.name}: rule {rule.id}: {owners[rule.id]} has a rule of this id",
                        hint="Give the rule a name of its own.",
                    )
                owners[rule.id] = pack.name
                for word in rule.words:
                    self._by_word.setdefault(word, []).append(len(self._rules))
                self._rules.append(rule)

    @property
    def words(self) -> Iterator[bytes]:
        for rule in self._rules:
            yield from rule.words
            yield from rule.near

    def find(self, sweep: Sweep) -> Iterator[Spot]:
        """What rules see; spans are bytes of the folded text."""
        asked: set[int] = set()
        for word in sweep.stretches:
            asked.update(self._by_word.get(word, ()))
        for number in sorted(asked):
            checkpoint()
            rule = self._rules[number]
            if rule.near and not sweep.has(rule.near):
                continue
            yield from without_flood(_spots(rule, sweep), len(sweep.data))


def _spots(rule: Rule, sweep: Sweep) -> Iterator[Spot]:
    for start, end in sweep.spans(rule.proven, rule.words, rule.near):
        yield Spot(
            category=rule.category,
            severity=rule.severity,
            rule=rule.id,
            message=rule.message,
            start=start,
            end=end,
            score=rule.score,
        )
