"""Rules as data: packs of patterns in TOML, each with examples that prove it (GRD-2).

A pack is a list of `[[rule]]` tables:

    id          its name in reports: `injection.override.en`
    category    one of `CATEGORIES`
    severity    low, medium, high or critical
    languages   ISO 639-1 codes; `["*"]` if it does not depend on one
    words       in lower case; at least one of them stands in everything that the rule matches
    near        optional: one of these words stands within reach too; keeps common words cheap
    pattern     RE2, over the text in lower case; it matches within reach of a word
    score       optional, between 0 and 1: how sure a match makes it
    message     for people
    match       examples that it finds
    not_match   examples with its words that it must leave alone

A table `[parts]` before them names pieces of patterns: `{reader}` in a pattern stands for the part
of that name. So rules are put together from who is spoken to, what is wanted, and of what.

Examples of packs that users bring are run when the pack is loaded; those of the shipped packs by
the tests, and again when a rule is first needed: a rule that does not do what it says is worse
than none, for people rely on it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources

from cellwall.config.settings_file import find_deep_line
from cellwall.core.errors import CellwallError, ConfigError
from cellwall.core.outcomes import Severity
from cellwall.guard.detect.rule_fields import RuleProblem, read_parts, read_rule
from cellwall.guard.detect.sweep import Spot, Sweep, folded_bytes, searchable, without_flood
from cellwall.parsing.budget import checkpoint
from cellwall.parsing.derived_cache import load_shipped_toml
from cellwall.parsing.matching import Pattern

_MAX_PACK_CHARACTERS = 1 << 20
_MAX_RULES = 1000
_MAX_NESTING = 4
_SHIPPED = frozenset(
    {"code_injection", "delimiters", "exfiltration", "injection", "injection_languages",
     "jailbreak", "orders", "orders_languages", "roles", "steering", "system_prompt", "tokens",
     "tool_calls"}
)  # fmt: skip


@dataclass(frozen=True)
class DetectionRule:
    """One pattern, and what it means where it matches."""

    id: str
    category: str
    severity: Severity
    languages: tuple[str, ...]
    words: tuple[bytes, ...]
    near: tuple[bytes, ...]
    pattern: str
    score: float
    message: str
    match: tuple[str, ...] = field(repr=False)
    not_match: tuple[str, ...] = field(repr=False)

    @cached_property
    def proven(self) -> Pattern:
        """The pattern, after its examples have passed."""
        faults = list(self.faults())
        if faults:
            raise ConfigError(
                f"rule {self.id}: {faults[0]}", hint="Install Cellwall again: a rule is damaged."
            )
        return self._compiled

    def faults(self) -> Iterator[str]:
        """Problems that its own examples reveal."""
        try:
            self._compiled.check()
        except CellwallError as error:
            yield f"{error.message}; {error.hint[:1].lower()}{error.hint[1:].rstrip('.')}"
            return
        if self._compiled.matches(b""):
            yield "the pattern matches nothing at all, so it would match everywhere"
        for example in self.match:
            data = folded_bytes(example)
            words = searchable(data)
            if not self._compiled.matches(data):
                yield f"the pattern does not match the example {_shown(example)}"
            elif not any(word in words for word in self.words):
                yield f"none of the words stands in the example {_shown(example)}"
            elif self.near and not any(word in words for word in self.near):
                yield f"none of the words in `near` stands in the example {_shown(example)}"
        for example in self.not_match:
            if self._compiled.matches(folded_bytes(example)):
                yield f"the pattern matches {_shown(example)}, which is in `not_match`"

    @cached_property
    def _compiled(self) -> Pattern:
        return Pattern(self.pattern)


@dataclass(frozen=True, slots=True)
class Pack:
    """A named set of rules."""

    name: str
    rules: tuple[DetectionRule, ...]


def load_pack(text: str, *, name: str) -> Pack:
    """A user's pack; `ConfigError` lists every problem."""
    deep = find_deep_line(text[:_MAX_PACK_CHARACTERS], most=_MAX_NESTING)
    if deep is not None:
        raise ConfigError(
            f"{name}:{deep}: nested more than {_MAX_NESTING} deep",
            hint="A pack is a list of `[[rule]]` tables with plain lists in them.",
        )
    pack, mistakes = _read(_document(text, name), name)
    if not mistakes:
        mistakes = [RuleProblem(rule.id, fault) for rule in pack.rules for fault in rule.faults()]
    if mistakes:
        raise ConfigError(
            "\n".join(f"{name}: {mistake}" for mistake in mistakes),
            hint="Correct the rules named; the pack is not used as long as one of them is wrong.",
        )
    return pack


@lru_cache(maxsize=1)
def shipped_packs() -> tuple[Pack, ...]:
    """The shipped packs. Loaded once; their examples are not run here."""
    folder = resources.files("cellwall.guard.detect") / "packs"
    found: list[Pack] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            pack, mistakes = _read(load_shipped_toml(file.read_text("utf-8")), name)
            if mistakes:
                raise ConfigError(
                    "\n".join(f"{name}: {mistake}" for mistake in mistakes),
                    hint="Install Cellwall again: its rules are damaged.",
                )
            found.append(pack)
    # Attack: without its pack, no rule of a kind would find anything, and nobody would know.
    if missing := _SHIPPED - {pack.name for pack in found}:
        raise ConfigError(
            f"rules of the guard are missing: {', '.join(sorted(missing))}",
            hint="Install Cellwall again.",
        )
    return tuple(found)


def _read(document: Mapping[str, object], name: str) -> tuple[Pack, list[RuleProblem]]:
    mistakes: list[RuleProblem] = [
        RuleProblem("", f"unknown key `{_plain(key)}`; a pack has `[[rule]]` tables and `[parts]`")
        for key in document
        if key not in ("rule", "parts")
    ]
    parts, wrong_parts = read_parts(document.get("parts", {}))
    mistakes += wrong_parts
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not tables:
        mistakes.append(RuleProblem("", "there is no `[[rule]]` in it"))
        tables = []
    if len(tables) > _MAX_RULES:
        mistakes.append(RuleProblem("", f"more than {_MAX_RULES} rules"))
        tables = tables[:0]
    rules: dict[str, DetectionRule] = {}
    for number, table in enumerate(tables, 1):
        values, wrong = read_rule(table, number, parts)
        mistakes += wrong
        if wrong:
            continue
        rule = DetectionRule(**values)
        if rule.id in rules:
            mistakes.append(RuleProblem(rule.id, "two rules have this id"))
        rules[rule.id] = rule
    return Pack(name, tuple(rules.values())), mistakes


def _document(text: str, name: str) -> Mapping[str, object]:
    if len(text) > _MAX_PACK_CHARACTERS:
        raise ConfigError(
            f"{name}: longer than {_MAX_PACK_CHARACTERS} characters",
            hint="Split the pack into several.",
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of 4301 digits
        raise ConfigError(
            f"{name}: not valid TOML: {_plain(str(error))}", hint="Correct that line and try again."
        ) from None


def _shown(example: str) -> str:
    return f"`{_plain(example)}`"


def _plain(text: str) -> str:
    """On one line and short: it came out of a file and goes into a terminal."""
    printable = "".join(one if one.isprintable() else " " for one in text[:160])
    return printable if len(text) <= 160 else printable + "…"


class RuleIndex:
    """All rules of all packs by keyword: only rules whose keywords are in a text are run."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        owners: dict[str, str] = {}
        self._rules: list[DetectionRule] = []
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
        """Matches of the rules; spans are bytes of the folded text."""
        numbers: set[int] = set()
        for word in sweep.stretches:
            numbers.update(self._by_word.get(word, ()))
        for number in sorted(numbers):
            checkpoint()
            rule = self._rules[number]
            if rule.near and not sweep.has(rule.near):
                continue
            yield from without_flood(_spots(rule, sweep), len(sweep.data))


def _spots(rule: DetectionRule, sweep: Sweep) -> Iterator[Spot]:
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
