"""The files, hosts and languages that a call would touch, as the rules see them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cellwall.core.errors import BadInput
from cellwall.core.verdict import Decision
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import judge_call
from cellwall.policy.rulebook import RuleBook
from cellwall.policy.rules import BadRule, Rule
from cellwall.policy.subjects import Subject, Targets

_MAX_TOUCHED = 40
_VERBS = {"read": "Reads", "write": "Writes", "fetch": "Fetches", "code": "Runs"}


class _NotingRuleBook(RuleBook):
    """Keeps every subject that is judged."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        super().__init__(rules)
        self.subjects: list[Subject] = []

    def judge(self, subject: Subject, what: str) -> Decision:
        self.subjects.append(subject)
        return super().judge(subject, what)


def touched(call: ToolCall, rules: Iterable[Rule], *, links: Targets) -> list[tuple[str, str]]:
    """Pairs such as `("Writes", "/workspace/notes.txt")`, each once; empty for a malformed call.

    Files that a command reads are not listed: any of its words may name one, and the rules only
    look whether one of them is forbidden.
    """
    book = _NotingRuleBook(rules)
    try:
        judge_call(book, call, links)
    except (BadInput, BadRule):
        return []
    found = dict.fromkeys(pair for subject in book.subjects for pair in _names(subject))
    return list(found)[:_MAX_TOUCHED]


def _names(subject: Subject) -> Iterator[tuple[str, str]]:
    verb = "Removes" if subject.is_removed else _VERBS.get(subject.group, "Uses")
    for name in (*subject.paths, *subject.globs):
        yield verb, name
    if subject.host:
        yield "Reaches", subject.host
    if subject.language:
        yield "Runs", subject.language
