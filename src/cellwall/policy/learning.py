"""The narrowest rules for recorded calls that no rule allowed (POL-10). Pure but for the resolution
of links in paths.

   (1) judge each call again, and record every command, path and host that only lacks a rule
   (2) one exact rule for each; a call that is refused for another reason gets no rule and is
       reported
   (3) judge each call once more, with these rules added to their file: a call that another file
       still denies or asks about gets no rule and is reported
   (4) many commands of one kind, or files of one folder, become one rule that lists what else it
       allows
   (5) keep a rule only if it parses back to its purpose

The record comes from agents that may have been misled: no text of it is shown unescaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cellwall.core.errors import BadInput
from cellwall.core.showing import one_line
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import UNKNOWN, Word, render_words
from cellwall.policy.calls import MCP, ToolCall
from cellwall.policy.command_patterns import CommandPattern
from cellwall.policy.engine import judge_call
from cellwall.policy.lessons import (
    ANY_FOLDER,
    Lesson,
    ProposedRule,
    RefusedCall,
    RuleFile,
    below,
    common_head,
    common_words,
    names_of,
    shared_folders,
)
from cellwall.policy.paths import normalise
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rulebook import RuleBook
from cellwall.policy.rules import OTHERWISE, BadRule, Layer, Rule, Source
from cellwall.policy.subjects import Subject, Targets, matches

_NO_RULE = frozenset(("default", OTHERWISE))
"""No rule matches the call: denied, or asked about by `otherwise`."""
_SPECIAL_IN_COMMANDS = frozenset("\\'\"*()")
_SPECIAL_IN_PATHS = frozenset("\\*?[]{}()")

Words = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class _UnmatchedCall:
    """A call that only lacks rules."""

    call: ToolCall
    commands: tuple[Words, ...]
    subjects: tuple[Subject, ...]


def learn(
    calls: Iterable[ToolCall],
    rules: Iterable[Rule],
    *,
    links: Targets,
    unread: Sequence[RefusedCall],
    place: RuleFile = ANY_FOLDER,
) -> Lesson:
    """Proposals for calls, judged by these rules; `unread` are incomplete records."""
    everything = tuple(rules)
    book = _RecordingRuleBook(everything, place)
    refused = list(unread)
    unruled: list[_UnmatchedCall] = []
    seen = allowed_now = 0
    for call in calls:
        seen += 1
        book.commands, book.subjects = [], []
        try:
            decision = judge_call(book, call, links)  # (1)
        except BadInput as problem:
            refused.append(RefusedCall(_render_call(call), problem.message))
            continue
        if decision.verdict is Verdict.ALLOW:
            allowed_now += 1
        elif reason := _other_reason(decision) or book.find_gap():
            refused.append(RefusedCall(_render_call(call), reason))
        else:
            unruled.append(_UnmatchedCall(call, tuple(book.commands), tuple(book.subjects)))
    commands: dict[tuple[str, ...], Words] = {}
    subjects: dict[tuple[str, tuple[str, ...], str], Subject] = {}
    answers = _question_answered(everything, place.layer)
    wider = RuleBook((*everything, *_exact_rules(unruled, place, answers)))
    for each in unruled:
        decision = judge_call(wider, each.call, links)  # (3)
        if decision.verdict is not Verdict.ALLOW:
            refused.append(RefusedCall(_render_call(each.call), _still(decision)))
            continue
        commands |= {tuple(word.text for word in words): words for words in each.commands}
        subjects |= {(one.tool, one.paths, one.host or one.cwd): one for one in each.subjects}
    proposed = [
        *_for_commands(list(commands.values())),
        *_for_subjects(list(subjects.values()), place),
    ]
    once = {each.rule: replace(each, answers=answers) for each in proposed}
    return Lesson(tuple(once.values()), tuple(dict.fromkeys(refused)), seen, allowed_now)


def _question_answered(rules: Iterable[Rule], layer: Layer) -> str:
    """The question that a rule in this layer has to answer; empty: a plain allow.

    The user's file answers the `otherwise` question of the project. A plain allow in the user's
    file would deny all other calls that the project allows.
    """
    asks = any(rule.tool == OTHERWISE for rule in rules)
    return OTHERWISE if layer is Layer.USER and asks else ""


def _exact_rules(
    unruled: Iterable[_UnmatchedCall], place: RuleFile, answers: str
) -> Iterator[Rule]:
    """(2)"""
    texts: dict[str, None] = {}
    for each in unruled:
        exact = (_exact_subject(subject, place) for subject in each.subjects)
        texts |= dict.fromkeys(filter(None, map(_exact_command, each.commands)))
        texts |= dict.fromkeys(filter(None, exact))
    for rule in filter(None, (_ruled(text, place) for text in texts)):
        yield replace(rule, layer=place.layer, answers=answers)


def _still(decision: Decision) -> str:
    return (
        f"a rule for it would not be enough: {decision.reason} [{decision.rule}, {decision.source}]"
    )


class _RecordingRuleBook(RuleBook):
    """Records the subjects and commands that no rule matches."""

    def __init__(self, rules: Iterable[Rule], place: RuleFile) -> None:
        super().__init__(rules)
        self._place = place
        self.commands: list[Words] = []
        self.subjects: list[Subject] = []

    def judge(self, subject: Subject, what: str) -> Decision:
        decision = super().judge(subject, what)
        if decision.rule in _NO_RULE:
            self.subjects.append(subject)
        return decision

    def judge_command(
        self,
        words: Sequence[Word],
        *,
        plain: Sequence[Word] | None = None,
        needs: frozenset[str] = frozenset(),
        home: str,
        what: str = "",
    ) -> Decision:
        decision = super().judge_command(words, plain=plain, needs=needs, home=home, what=what)
        if decision.rule in _NO_RULE and not needs:
            self.commands.append(tuple(words))
        return decision

    def find_gap(self) -> str:
        """Why no rule matches exactly the recorded subjects; empty if one does for each."""
        if not self.commands and not self.subjects:
            return "no rule can match any part of it"
        for words in self.commands:
            if _exact_command(words) is None:
                return f"no rule can match exactly this: {one_line(render_words(words))}"
        for subject in self.subjects:
            if _exact_subject(subject, self._place) is None:
                return "no rule can match exactly this path or tool; write one by hand"
        return ""


def _other_reason(decision: Decision) -> str:
    """The reason against a call besides a missing rule: a denial, a question, a parse failure.

    No allow would change the reason, or a record must not propose one.
    """
    for part in decision.parts or (decision,):
        if part.verdict is not Verdict.ALLOW and part.rule not in _NO_RULE:
            return f"{part.reason} [{part.rule}, {part.source}]"
    return ""


def _render_call(call: ToolCall) -> str:
    values = [str(value) for value in call.input.values() if isinstance(value, str | int)]
    return one_line(f"{call.tool}({', '.join(values)})", most=100)


# (2) Exact rules, each (5) read back


def _ruled(text: str, place: RuleFile = ANY_FOLDER) -> Rule | None:
    source = Source("learned", folder=place.folder)
    try:
        return parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.SESSION)
    except BadRule:
        return None


def _exact_command(words: Words) -> str | None:
    if any(word.is_split or UNKNOWN in word.text for word in words):
        return None
    text = f"Bash({' '.join(_quoted(word.text) for word in words)})"
    rule = _ruled(text)
    if rule is None or rule.specifier is None:
        return None
    # With a home that no word has: a rule cannot spell a `~` that stands for itself.
    pattern = CommandPattern.parse(rule.specifier, UNKNOWN)
    is_same = pattern.tokens == tuple((word.text,) for word in words)
    return text if is_same and not pattern.is_open else None


def _quoted(word: str) -> str:
    """A word as a rule spells it: wildcards, quotes and parentheses lose their meaning."""
    spelled = "".join(f"\\{char}" if char in _SPECIAL_IN_COMMANDS else char for char in word)
    return spelled.replace(" ", "' '") or "''"


def _exact_subject(subject: Subject, place: RuleFile) -> str | None:
    match subject.group:
        case "read" | "write":
            paths = {normalise(path) for path in subject.paths}
            if len(paths) != 1 or _is_too_wide(path := paths.pop(), subject):
                return None
            beneath = "/**" if path == subject.cwd else ""
            text = _path_rule(subject, path, place, beneath=beneath)
        case "fetch":
            text = f"{subject.tool}(domain:{subject.host})"
        case "code":
            text = f"{subject.tool}({subject.language})"
        case "mcp" if "__" not in subject.tool.removeprefix(MCP):
            return None  # the name of a server, which in a rule means all its tools
        case _:
            text = subject.tool
    rule = _ruled(text, place)
    return text if rule is not None and matches(rule, subject) else None


def _path_rule(subject: Subject, path: str, place: RuleFile, *, beneath: str = "") -> str:
    tool = "Read" if subject.group == "read" else "Edit"
    shape = place.spelled(path, subject, beneath)
    spelled = "".join(f"\\{char}" if char in _SPECIAL_IN_PATHS else char for char in shape)
    return f"{tool}({spelled}{beneath})"


def _is_too_wide(path: str, subject: Subject) -> bool:
    """A rule for a folder covers all below it: none for the home folder or a folder above it."""
    names = names_of(path)
    above = [names_of(subject.home), names_of(subject.cwd)[:-1]]
    return len(names) < 2 or any(names == folder[: len(names)] for folder in above)


# (4) Wider ones


def _for_commands(commands: Sequence[Words]) -> Iterator[ProposedRule]:
    groups: dict[tuple[str, ...], list[Words]] = {}
    for words in commands:
        groups.setdefault(common_head(words), []).append(words)
    wide = []
    for head, members in groups.items():
        texts = [tuple(word.text for word in words) for words in members]
        begin = common_words(head, texts)
        if not begin:
            yield from (ProposedRule(rule) for words in members if (rule := _exact_command(words)))
            continue
        stands_for = tuple(one_line(render_words(words), most=90) for words in members)
        also = f"every other command that begins with `{' '.join(begin)}`"
        wide.append(ProposedRule(f"Bash({' '.join(begin)} *)", stands_for, also))
    yield from wide


def _for_subjects(subjects: Sequence[Subject], place: RuleFile) -> Iterator[ProposedRule]:
    groups: dict[tuple[str, str, bool], dict[tuple[str, ...], Subject]] = {}
    for each in subjects:
        if each.group not in {"read", "write"}:
            rule = _exact_subject(each, place)
            if rule is not None:
                yield ProposedRule(rule, also_allows=_also(each))
            continue
        path = normalise(each.paths[0])
        is_inside = below(each.cwd, path) is not None
        key = (each.group, each.cwd if is_inside else "", is_inside)
        groups.setdefault(key, {})[names_of(path)] = each
    for members in groups.values():
        yield from _for_paths(members, place)


def _for_paths(members: dict[tuple[str, ...], Subject], place: RuleFile) -> Iterator[ProposedRule]:
    any_of = next(iter(members.values()))
    cwd = names_of(any_of.cwd)

    def is_worth(folder: tuple[str, ...]) -> bool:
        return folder != cwd and not _is_too_wide("/" + "/".join(folder), any_of)

    left = dict(members)
    wide = []
    for folder, files in shared_folders(members, is_worth):
        path = "/" + "/".join(folder)
        rule = _path_rule(any_of, path, place, beneath="/**")
        read_back = _ruled(rule, place)
        if read_back is None or not all(matches(read_back, members[each]) for each in files):
            continue
        stands_for = tuple(one_line("/" + "/".join(each), most=90) for each in files)
        also = f"every other file beneath {one_line(path)}"
        wide.append(ProposedRule(rule, stands_for, also))
        for each in files:
            del left[each]
    for subject in left.values():
        exact = _exact_subject(subject, place)
        if exact is not None:
            is_search = subject.tool in {"Grep", "Glob", "LS"}
            yield ProposedRule(exact, also_allows="all that lies beneath it" if is_search else "")
    yield from wide


def _also(subject: Subject) -> str:
    match subject.group:
        case "fetch":
            return f"every page of {one_line(subject.host)}"
        case "code":
            return f"any code in {subject.language}"
        case _:
            return "every call of this tool, with any arguments"
