"""Finds the path rules that could speak of a path, so that not all of them are tried. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.protected_names import fold
from cellwall.core.verdict import Verdict
from cellwall.policy.paths import path_pattern
from cellwall.policy.protected_rules import folded
from cellwall.policy.rules import Rule
from cellwall.policy.steps import Deep
from cellwall.policy.subjects import Subject
from cellwall.policy.tools import group_of


@dataclass(frozen=True, slots=True)
class PathIndex:
    """Rules by one name that must stand in every path they match."""

    by_name: Mapping[str, Sequence[Rule]]
    others: Sequence[Rule]
    """Those without such a name."""

    @classmethod
    def of(cls, rules: Iterable[Rule], group: str, verdict: Verdict) -> PathIndex:
        by_name: dict[str, list[Rule]] = {}
        others: list[Rule] = []
        for rule in rules:
            if group_of(rule.tool) == group and rule.verdict is verdict:
                name = _fixed_name(rule)
                (others if name is None else by_name.setdefault(name, [])).append(rule)
        return cls(by_name, others)

    def about(self, subjects: Sequence[Subject]) -> Iterator[Rule]:
        """All that could match one of these; all there are, where a path is not known."""
        yield from self.others
        if any(subject.globs or subject.is_whole for subject in subjects):
            for rules in self.by_name.values():
                yield from rules
            return
        paths = (p for each in subjects for p in (*each.paths, *each.doubtful))
        names = {name for path in paths for name in path.split("/")}
        for name in names | set(map(fold, names)):
            yield from self.by_name.get(name, ())


def _fixed_name(rule: Rule) -> str | None:
    if rule.specifier is None:
        return None
    specifier = folded(rule.specifier) if rule.name_kind else rule.specifier
    # The home folder is not part of what is asked for here.
    pattern = path_pattern(specifier, rule.source.folder, "/", rule.verdict is Verdict.DENY)
    head = pattern.head.rpartition("/")[2]
    tail = [step.literal for step in pattern.tail if not isinstance(step, Deep) and step.literal]
    name = tail[-1] if tail else head
    return None if name in {"", ".", ".."} else name
