"""All rules of a policy, indexed by path, host and command. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import takewhile

from cellwall.core.git_names import fold
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import UNKNOWN, Access, Word
from cellwall.policy.calls import group_of
from cellwall.policy.command_patterns import CommandPattern
from cellwall.policy.commands.catalog import grammar
from cellwall.policy.globs import Deep
from cellwall.policy.paths import path_pattern
from cellwall.policy.protected_rules import fold_path
from cellwall.policy.rules import (
    Layer,
    LayerRules,
    Matches,
    Rule,
    RulesByLayer,
    decision_of,
    judge,
    restrict,
)
from cellwall.policy.subjects import Subject, matches

_BETWEEN_WORDS = "\x1f"  # the name of no program
_MAX_PROGRAMS = 1024
_MAX_PROGRAM_NAME = 64
_MAX_KNOWN = 8192
_MAX_KNOWN_COMMANDS = 2048
_MAX_KNOWN_COMMAND = 1024
"""Characters of a command whose decision is kept: longer ones take memory, and repeat less."""
_ACCESSES: tuple[Access, ...] = ("read", "write")
_TELLING_NOTHING = frozenset(("", ".", "..", "~", ".config", ".local", ".cache"))

OTHERS_FILES = "files of others"
"""The name of the built-in denial by the owner of a file."""

_CommandKey = tuple[tuple[Word, ...], tuple[Word, ...] | None, frozenset[str], str, str]

pattern_of = lru_cache(maxsize=8192)(CommandPattern.parse)


class RuleBook:
    """The rules of one policy, indexed for fast decisions."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._layered = RulesByLayer.of(self.rules)
        self._by_program: dict[str, tuple[LayerRules, ...]] = {}
        self._judged: dict[Subject, Decision] = {}
        self._judged_commands: dict[_CommandKey, Decision] = {}
        self._known: dict[tuple[Subject, ...], Rule | None] = {}
        self.bounds_writing = any(
            group_of(rule.tool) == "write" and rule.verdict is Verdict.ALLOW for rule in self.rules
        )
        """Some rule allows writing, so that other writes are denied."""
        denied_paths = {access: _denied_paths(self.rules, access) for access in _ACCESSES}
        self._secrets = {each: _telling_names(denied_paths[each], each) for each in _ACCESSES}
        self._anchored = {each: _anchored_paths(denied_paths[each]) for each in _ACCESSES}
        self._floating = {each: _floating_names(denied_paths[each]) for each in _ACCESSES}
        self._last_names = {each: _last_names(denied_paths[each]) for each in _ACCESSES}
        denials = [pattern_of(each.specifier) for each in self.rules if _is_denied_command(each)]
        self._denied_names = frozenset(each.program for each in denials if each.program)
        self._denied_globs = tuple(each for each in denials if not (each.program or each.is_any))
        self._paths: dict[tuple[str, Verdict], PathIndex] = {
            (group, verdict): PathIndex.of(self.rules, group, verdict)
            for group in _ACCESSES
            for verdict in (Verdict.DENY, Verdict.ASK)
        }

    # --- tools other than Bash

    def judge(self, subject: Subject, what: str) -> Decision:
        """A call of a tool: no match is DENY."""
        if subject.owner_trouble:
            return refuse(subject.owner_trouble, what, OTHERS_FILES)
        found = self._judged.get(subject)
        if found is None:
            if len(self._judged) >= _MAX_KNOWN:
                self._judged.clear()
            layers = self._layered.for_group(subject.group)
            found = judge(layers, lambda rule: matches(rule, subject))
            self._judged[subject] = found
        if found.subject != what:
            found = self._judged[subject] = replace(found, subject=what)
        return found

    def forbids(self, subjects: Sequence[Subject], what: str) -> Decision | None:
        """Only denials and questions: for files that an allowed command touches."""
        trouble = next((each.owner_trouble for each in subjects if each.owner_trouble), "")
        if trouble:
            return refuse(trouble, what, OTHERS_FILES)
        key = tuple(subjects)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._forbidding(subjects)
        rule = self._known[key]
        return None if rule is None else decision_of(rule, what)

    def _forbidding(self, subjects: Sequence[Subject]) -> Rule | None:
        for verdict in (Verdict.DENY, Verdict.ASK):
            about = self._paths[subjects[0].group, verdict].about(subjects)
            found = [rule for rule in about if any(matches(rule, each) for each in subjects)]
            if found:  # the first, or one that also stops the agent
                return next((rule for rule in found if rule.stops), found[0])
        return None

    def is_like_secret(self, token: Word, access: Access) -> bool:
        """Whether a word is a large part of a denied name, in any folder."""
        whole = token.text.lower()
        text = whole.strip("^$.*\\/")
        names = self._secrets[access]
        is_extension = whole.startswith("*.") and whole[2:].isalnum()  # and no part of a name
        if not is_extension and any(text in name and 2 * len(text) >= len(name) for name in names):
            return True
        # In `find -name` a wildcard matches a leading dot, unlike in a shell.
        last = whole.rpartition("/")[2]
        return token.has_glob and last != "*" and any(fnmatchcase(name, last) for name in names)

    def fits_secret(self, regex: re.Pattern[str] | None, access: Access) -> bool:
        """Whether the path of a denied name, below some folder, matches a regular expression."""
        if regex is None:
            return True
        return any(
            regex.fullmatch(f"{at}/{x}") for x in self._secrets[access] for at in (".", "/a")
        )

    def is_denied_anywhere(self, glob: str, access: Access) -> bool:
        """Whether a glob, whose `*` matches a dot, matches a name that is denied in any folder."""
        is_any = not glob.strip("*")
        return not is_any and any(fnmatchcase(x, glob.lower()) for x in self._floating[access])

    def is_last_name(self, glob: str, access: Access) -> bool:
        """Whether a lower-case glob matches the last name of a denied path."""
        return any(fnmatchcase(name, glob) for name in self._last_names[access])

    def anchored(self, access: Access, home: str) -> tuple[str, ...]:
        """The paths of denials from the root or from home, up to their first wildcard."""
        return tuple(
            posixpath.join(home, path[2:]) if path.startswith("~/") else path
            for path in self._anchored[access]
        )

    # --- commands

    def judge_command(
        self,
        words: Sequence[Word],
        *,
        plain: Sequence[Word] | None = None,
        needs: frozenset[str] = frozenset(),
        home: str,
        what: str = "",
    ) -> Decision:
        """`needs`: options that a rule must spell to allow the command. `plain`: the command
        without options before the sub-command; a denial holds for either."""
        key = (tuple(words), None if plain is None else tuple(plain), needs, home, what)
        found = self._judged_commands.get(key)
        if found is None:
            found = judge(self._about(words[0]), _hits(words, plain, needs, home), subject=what)
            if sum(len(word.text) for word in words) <= _MAX_KNOWN_COMMAND:
                if len(self._judged_commands) >= _MAX_KNOWN_COMMANDS:
                    self._judged_commands.clear()
                self._judged_commands[key] = found
        return found

    def forbids_command(
        self,
        words: Sequence[Word],
        *,
        plain: Sequence[Word] | None = None,
        home: str,
        what: str = "",
    ) -> Decision | None:
        """Only denials and questions."""
        hits = _hits(words, plain, frozenset(), home)
        return restrict(self._about(words[0]), hits, subject=what)

    def is_denied_program(self, name: str) -> bool:
        """Whether a denial names this program, alone or with arguments."""
        if not name or len(name) > _MAX_PROGRAM_NAME:
            return False
        return name in self._denied_names or any(
            pattern.is_about(name) for pattern in self._denied_globs
        )

    @cached_property
    def otherwise(self) -> Verdict:
        """The verdict for a command that no rule names."""
        # Not the method of a subclass: a subclass that records verdicts must not record this one.
        return RuleBook.judge_command(self, (Word(_BETWEEN_WORDS),), home="").verdict

    @property
    def asks_otherwise(self) -> bool:
        """A command that no rule names is allowed, or a question (`otherwise = "ask"`): then a
        doubt about an allowed command that a person can resolve is a question, too."""
        return self.otherwise is not Verdict.DENY

    def could_only_become(self, decision: Decision, words: Sequence[Word], *, home: str) -> bool:
        """Whether a denial holds only for possible values of unknown words."""
        if not decision.rule.startswith("Bash(") or not any(UNKNOWN in each.text for each in words):
            return False
        usual = [Word(each.text.replace(UNKNOWN, "x"), has_glob=each.has_glob) for each in words]
        return not pattern_of(decision.rule[5:-1], home).forbids(usual)

    def is_administrators(self, words: Sequence[Word], *, home: str) -> bool:
        """Whether an administrator's rule allows the command by the name of the program."""
        hits = _hits(words, None, frozenset(), home)
        return any(
            rule.layer is Layer.ADMINISTRATOR and not pattern_of(rule.specifier).is_any
            for layer in self._about(words[0])
            for rule in layer.allow
            if hits(rule)
        )

    def _about(self, program: Word) -> tuple[LayerRules, ...]:
        """The layers with only the rules that could match this program."""
        name = program.text.rpartition("/")[2]
        found = self._by_program.get(name)
        if found is None:
            if len(self._by_program) >= _MAX_PROGRAMS:
                self._by_program.clear()
            layers = self._layered.for_group("bash")
            found = self._by_program[name] = tuple(_only(each, name) for each in layers)
        return found


def _is_denied_command(rule: Rule) -> bool:
    return rule.verdict is Verdict.DENY and group_of(rule.tool) == "bash"


def _denied_paths(rules: Iterable[Rule], access: Access) -> list[str]:
    """The path patterns of the denials for one kind of access."""
    denials = [rule for rule in rules if rule.verdict is Verdict.DENY]
    return [rule.specifier for rule in denials if rule.specifier and group_of(rule.tool) == access]


def _telling_names(patterns: Iterable[str], access: Access) -> frozenset[str]:
    """Names of paths that are denied in any folder, and hidden names of all denied paths."""
    found: set[str] = set()
    for pattern in patterns:
        is_floating = "/" not in pattern or pattern.startswith("**/")
        for name in pattern.lower().split("/"):
            is_plain = name not in _TELLING_NOTHING and not set(name) & set("*?[\\")
            if is_plain and (name.startswith(".") or (is_floating and access == "read")):
                found.add(name)
    return frozenset(found)


def _anchored_paths(patterns: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for pattern in patterns:
        if pattern.startswith(("~/", "//")):
            names = pattern.removeprefix("/").split("/")
            plain = list(takewhile(lambda name: not set(name) & set("*?["), names))
            if any(plain[1:]):
                found.add("/".join(plain).rstrip("/"))
    return frozenset(found)


def _floating_names(patterns: Iterable[str]) -> frozenset[str]:
    """The last names of paths that are denied in any folder."""
    return _last_names(x for x in patterns if x.startswith(("//**/", "**/")) or "/" not in x)


def _last_names(patterns: Iterable[str]) -> frozenset[str]:
    names = (pattern.lower().rpartition("/")[2] for pattern in patterns)
    return frozenset(name for name in names if name and not set(name) & set("*?["))


def _only(layer: LayerRules, name: str) -> LayerRules:
    def about(rules: Sequence[Rule]) -> tuple[Rule, ...]:
        return tuple(rule for rule in rules if pattern_of(rule.specifier).program in {None, name})

    return replace(
        layer,
        deny=about(layer.deny),
        ask=about(layer.ask),
        allow=about(layer.allow),
        answers=about(layer.answers),
    )


def _hits(
    words: Sequence[Word], plain: Sequence[Word] | None, needs: frozenset[str], home: str
) -> Matches:
    is_printing = grammar().is_printing(words)

    def hits(rule: Rule) -> bool:
        pattern = pattern_of(rule.specifier, home)
        if rule.verdict is not Verdict.ALLOW:
            if is_printing and rule.layer is Layer.BUILT_IN:
                return False
            return pattern.forbids(words) or (plain is not None and pattern.forbids(plain))
        is_meant = pattern.is_any or all(pattern.spells(option) for option in needs)
        return is_meant and pattern.matches(words)

    return hits


def refuse(
    why: str, what: str, rule: str = "not-understood", *, is_asked: bool = False
) -> Decision:
    """A built-in denial, whatever the rules allow; `is_asked`: a question to a person instead."""
    return Decision(Verdict.ASK if is_asked else Verdict.DENY, rule, why, "built-in", what)


# Finds the path rules that could match a path, so that not all of them are tried.


@dataclass(frozen=True, slots=True)
class PathIndex:
    """Rules by one name that every path of the rule contains; None: rules without such a name."""

    rules: Sequence[Rule]
    by_name: Mapping[str | None, Sequence[int]]

    @classmethod
    def of(cls, rules: Iterable[Rule], group: str, verdict: Verdict) -> PathIndex:
        chosen = [x for x in rules if group_of(x.tool) == group and x.verdict is verdict]
        by_name: dict[str | None, list[int]] = {}
        for number, rule in enumerate(chosen):
            by_name.setdefault(_fixed_name(rule), []).append(number)
        return cls(chosen, by_name)

    def about(self, subjects: Sequence[Subject]) -> Iterable[Rule]:
        """The rules that could match a subject, in their order; all rules for an unknown path."""
        if any(subject.globs or subject.is_whole for subject in subjects):
            return self.rules
        paths = (p for each in subjects for p in (*each.paths, *each.doubtful))
        names = {name for path in paths for name in path.split("/")}
        buckets = (self.by_name.get(name, ()) for name in {None, *names, *map(fold, names)})
        # The first rule is the one that is reported, and must not depend on the order of a set.
        return [self.rules[number] for number in sorted(n for bucket in buckets for n in bucket)]


def _fixed_name(rule: Rule) -> str | None:
    if rule.specifier is None:
        return None
    specifier = fold_path(rule.specifier) if rule.name_kind else rule.specifier
    # The home folder does not matter for the name.
    pattern = path_pattern(specifier, rule.source.folder, "/", rule.verdict is Verdict.DENY)
    head = pattern.head.rpartition("/")[2]
    tail = [step.literal for step in pattern.tail if not isinstance(step, Deep) and step.literal]
    name = tail[-1] if tail else head
    return None if name in {"", ".", ".."} else name
