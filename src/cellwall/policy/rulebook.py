"""All rules of a policy, indexed by path, host and command. Pure.

`merge` combines the layers.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import takewhile

from cellwall.core.protected_names import fold
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.command import Access
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.calls import group_of
from cellwall.policy.command_patterns import CommandPattern
from cellwall.policy.commands.grammar import grammar
from cellwall.policy.globs import Deep
from cellwall.policy.merge import LayerRules, Matches, RulesByLayer, decision_of, judge, restrict
from cellwall.policy.paths import path_pattern
from cellwall.policy.protected_rules import folded
from cellwall.policy.rules import Layer, Rule
from cellwall.policy.subjects import Subject, matches

_BETWEEN_WORDS = "\x1f"  # the name of no program
_MAX_PROGRAMS = 1024
_MAX_PROGRAM_NAME = 64
_MAX_KNOWN = 8192
_TELLING_NOTHING = frozenset(("", ".", "..", "~", ".config", ".local", ".cache"))

OTHERS_FILES = "files of others"
"""The name of the denial that is no rule: who owns a file is not written in one."""

pattern_of = lru_cache(maxsize=8192)(CommandPattern.parse)


class RuleBook:
    """The rules of one policy, sorted for quick answers."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._layered = RulesByLayer.of(self.rules)
        self._by_program: dict[str, tuple[LayerRules, ...]] = {}
        self._judged: dict[Subject, Decision] = {}
        self._known: dict[tuple[Subject, ...], Rule | None] = {}
        self.bounds_writing = any(
            group_of(rule.tool) == "write" and rule.verdict is Verdict.ALLOW for rule in self.rules
        )
        """Some rule says what may be written."""
        self._secrets: dict[Access, frozenset[str]] = {
            "read": _telling_names(self.rules, "read"),
            "write": _telling_names(self.rules, "write"),
        }
        self._anchored: dict[Access, frozenset[str]] = {
            "read": _anchored_paths(self.rules, "read"),
            "write": _anchored_paths(self.rules, "write"),
        }
        self._floating: dict[Access, frozenset[str]] = {
            "read": _floating_names(self.rules, "read"),
            "write": _floating_names(self.rules, "write"),
        }
        self._last_names: dict[Access, frozenset[str]] = {
            "read": _last_names(self.rules, "read"),
            "write": _last_names(self.rules, "write"),
        }
        denials = [pattern_of(each.specifier) for each in self.rules if _is_denied_command(each)]
        self._denied_names = frozenset(each.program for each in denials if each.program)
        self._denied_globs = tuple(each for each in denials if not (each.program or each.is_any))
        self._paths = {
            (group, verdict): PathIndex.of(self.rules, group, verdict)
            for group in ("read", "write")
            for verdict in (Verdict.DENY, Verdict.ASK)
        }

    # --- what is not a command

    def judge(self, subject: Subject, what: str) -> Decision:
        """A call of a tool: no match is DENY."""
        if subject.owner_trouble:
            return denied(subject.owner_trouble, what, OTHERS_FILES)
        found = self._judged.get(subject)
        if found is None:
            if len(self._judged) >= _MAX_KNOWN:
                self._judged.clear()
            layers = self._layered.for_group(subject.group)
            found = judge(layers, lambda rule: matches(rule, subject))
            self._judged[subject] = found
        return replace(found, subject=what)

    def forbids(self, subjects: Sequence[Subject], what: str) -> Decision | None:
        """Only what denies or asks: for what a command that is allowed touches."""
        trouble = next((each.owner_trouble for each in subjects if each.owner_trouble), "")
        if trouble:
            return denied(trouble, what, OTHERS_FILES)
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
        """Whether it is a good part of a name that may not be touched so, wherever it lies."""
        whole = token.text.lower()
        text = whole.strip("^$.*\\/")
        names = self._secrets[access]
        is_extension = whole.startswith("*.") and whole[2:].isalnum()  # and no part of a name
        if not is_extension and any(text in name and 2 * len(text) >= len(name) for name in names):
            return True
        # What `find -name` takes for a dot, a shell would not.
        last = whole.rpartition("/")[2]
        return token.has_glob and last != "*" and any(fnmatchcase(name, last) for name in names)

    def fits_secret(self, regex: re.Pattern[str] | None, access: Access) -> bool:
        """Whether the path of such a name, below some folder, fits a regular expression."""
        if regex is None:
            return True
        return any(
            regex.fullmatch(f"{at}/{x}") for x in self._secrets[access] for at in (".", "/a")
        )

    def is_denied_anywhere(self, glob: str, access: Access) -> bool:
        """Whether a name that is denied in any folder fits a glob, in which `*` is a dot, too."""
        is_any = not glob.strip("*")
        return not is_any and any(fnmatchcase(x, glob.lower()) for x in self._floating[access])

    def is_last_name(self, glob: str, access: Access) -> bool:
        """Whether a denied path ends in a name that a lower-case glob fits."""
        return any(fnmatchcase(name, glob) for name in self._last_names[access])

    def anchored(self, access: Access, home: str) -> tuple[str, ...]:
        """The paths, up to their first wildcard, that denials name from the root or from home."""
        return tuple(
            posixpath.join(home, path[2:]) if path.startswith("~/") else path
            for path in self._anchored[access]
        )

    # --- commands

    def judge_command(
        self,
        words: Sequence[Word],
        *,
        plain: Sequence[Word] | None,
        needs: frozenset[str],
        home: str,
        what: str,
    ) -> Decision:
        """`needs`: what a rule must spell out to mean it. `plain`: the same without options that
        come before the sub-command; a denial holds for either."""
        return judge(self._about(words[0]), _hits(words, plain, needs, home), subject=what)

    def forbids_command(
        self, words: Sequence[Word], *, plain: Sequence[Word] | None, home: str, what: str
    ) -> Decision | None:
        """Only what denies or asks."""
        hits = _hits(words, plain, frozenset(), home)
        return restrict(self._about(words[0]), hits, subject=what)

    def is_denied_program(self, name: str) -> bool:
        """Whether a denial speaks of this program, alone or with arguments."""
        if not name or len(name) > _MAX_PROGRAM_NAME:
            return False
        return name in self._denied_names or any(
            pattern.is_about(name) for pattern in self._denied_globs
        )

    @cached_property
    def otherwise(self) -> Verdict:
        """What becomes of a command that no rule names."""
        nameless, needs = (Word(_BETWEEN_WORDS),), frozenset[str]()
        # Not the method of a subclass: who listens to verdicts must not hear of this one.
        judge = RuleBook.judge_command
        return judge(self, nameless, plain=None, needs=needs, home="", what="").verdict

    @property
    def asks_otherwise(self) -> bool:
        """A command that no rule names is allowed, or asked about (`otherwise = "ask"`): then what
        only a person can know of an allowed command is a question, too."""
        return self.otherwise is not Verdict.DENY

    def could_only_become(self, decision: Decision, words: Sequence[Word], *, home: str) -> bool:
        """Whether a denial holds for what unknown words could be, and not for the others alone."""
        if not decision.rule.startswith("Bash(") or not any(UNKNOWN in each.text for each in words):
            return False
        usual = [Word(each.text.replace(UNKNOWN, "x"), has_glob=each.has_glob) for each in words]
        return not pattern_of(decision.rule[5:-1], home).forbids(usual)

    def is_administrators(self, words: Sequence[Word], *, home: str) -> bool:
        """Whether a rule of the administrator's allows it by the program's name."""
        hits = _hits(words, None, frozenset(), home)
        return any(
            rule.layer is Layer.ADMINISTRATOR and not pattern_of(rule.specifier).is_any
            for layer in self._about(words[0])
            for rule in layer.allow
            if hits(rule)
        )

    def _about(self, program: Word) -> tuple[LayerRules, ...]:
        """The layers with only the rules that could speak of this program."""
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


def _telling_names(rules: Iterable[Rule], access: Access) -> frozenset[str]:
    """Names in paths that are denied in any folder, and hidden ones in those that are denied."""
    found: set[str] = set()
    for rule in rules:
        if group_of(rule.tool) == access and rule.verdict is Verdict.DENY and rule.specifier:
            is_floating = "/" not in rule.specifier or rule.specifier.startswith("**/")
            for name in rule.specifier.lower().split("/"):
                is_plain = name not in _TELLING_NOTHING and not set(name) & set("*?[\\")
                if is_plain and (name.startswith(".") or (is_floating and access == "read")):
                    found.add(name)
    return frozenset(found)


def _anchored_paths(rules: Iterable[Rule], access: Access) -> frozenset[str]:
    found: set[str] = set()
    for rule in rules:
        specifier = rule.specifier or ""
        if group_of(rule.tool) != access or rule.verdict is not Verdict.DENY:
            continue
        if specifier.startswith(("~/", "//")):
            names = specifier.removeprefix("/").split("/")
            plain = list(takewhile(lambda name: not set(name) & set("*?["), names))
            if any(plain[1:]):
                found.add("/".join(plain).rstrip("/"))
    return frozenset(found)


def _floating_names(rules: Iterable[Rule], access: Access) -> frozenset[str]:
    """Those of paths that are denied in any folder."""
    floating = [
        rule
        for rule in rules
        if (rule.specifier or "").startswith(("//**/", "**/")) or "/" not in (rule.specifier or "/")
    ]
    return _last_names(floating, access)


def _last_names(rules: Iterable[Rule], access: Access) -> frozenset[str]:
    denials = (
        (rule.specifier or "").lower().rpartition("/")[2]
        for rule in rules
        if group_of(rule.tool) == access and rule.verdict is Verdict.DENY
    )
    return frozenset(name for name in denials if name and not set(name) & set("*?["))


def _only(layer: LayerRules, name: str) -> LayerRules:
    def about(rules: Sequence[Rule]) -> tuple[Rule, ...]:
        return tuple(rule for rule in rules if pattern_of(rule.specifier).program in {None, name})

    return LayerRules(
        layer.layer,
        about(layer.deny),
        about(layer.ask),
        about(layer.allow),
        about(layer.answers),
        layer.is_closed,
        layer.otherwise,
        layer.file,
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


def denied(why: str, what: str, rule: str = "not-understood") -> Decision:
    """By us, whatever the rules say."""
    return Decision(Verdict.DENY, rule, why, "built-in", what)


# EffectsBuilder the path rules that could speak of a path, so that not all of them are tried.


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
