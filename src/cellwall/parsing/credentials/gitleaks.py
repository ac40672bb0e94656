"""Loads rule files in the gitleaks format, so that users can bring the upstream set.

Supported: `regex`, `secretGroup`, `entropy`, `keywords`, and allowlists at both levels
with `regexes`, `stopwords`, `regexTarget`, `condition` and `targetRules`. A text has no
path, so rules of paths alone are skipped, and an allowlist of paths allows nothing.
Go's expressions are RE2's, so all of them run in linear time.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.showing import escaped
from cellwall.parsing.credentials.rule_set import SecretRules
from cellwall.parsing.credentials.search_rules import (
    AHEAD_BYTES,
    Allow,
    GroupedPattern,
    SearchRule,
    Target,
)
from cellwall.parsing.credentials.spans import sanitise_name

_MAX_RULES = 5000
_MAX_CHARACTERS = 2 << 20
_MAX_INSTRUCTIONS = 2_000_000
"""RE2 instructions of all expressions together: gitleaks' own 221 have 173,000. A short line can
expand to a million, which take a second and a hundred megabytes."""
_MAX_WORDS = 20_000
_MAX_WORD_BYTES = 200
_MAX_DOTS = 500
_MAX_ENTROPY = 64.0
_FAR_BYTES = 16 * 1024
_MANY_LINES = (r"[\s\S", r"(?s", r"\n", r"\r", r"[[:space:]]")
_TARGETS: tuple[Target, ...] = ("secret", "match", "line")

TomlTable = Mapping[str, object]


def load_gitleaks(text: str) -> SecretRules:
    """The rules of a file; `ConfigError` states the first problem."""
    if len(text) > _MAX_CHARACTERS:
        raise _config_error(f"it is longer than {_MAX_CHARACTERS} characters")
    # tomllib keeps every prefix of a dotted key: 20,000 parts take a gigabyte.
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise _config_error(f"a line has more than {_MAX_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a plain ValueError
        raise _config_error(f"it is not TOML: {str(error)[:200]}") from None
    _refuse_extension(table)
    rows = _tables(table, "rules", "the file")
    if len(rows) > _MAX_RULES:
        raise _config_error(f"it has more than {_MAX_RULES} rules")
    limits = _FileLimits()
    everywhere = _allows(table, "the file", limits)
    parsed = (_rule(row, number, limits) for number, row in enumerate(rows, 1))
    rules = [rule for rule in parsed if rule is not None]
    if not rules:
        raise _config_error("it has no rule with a regex")
    twice = [name for name, count in Counter(rule.id for rule in rules).items() if count > 1]
    if twice:
        raise _config_error(f"two rules have the id {twice[0][:80]!r}")
    return SecretRules(searches=tuple(_with_allowlists(rule, everywhere) for rule in rules))


def _with_allowlists(rule: SearchRule, everywhere: tuple[Allow, ...]) -> SearchRule:
    more = tuple(allow for allow in everywhere if not allow.rules or rule.id in allow.rules)
    return replace(rule, allows=rule.allows + more)


def _refuse_extension(table: TomlTable) -> None:
    extend = table.get("extend")
    if extend is None:
        return
    if not isinstance(extend, Mapping) or any(
        extend.get(key) for key in ("useDefault", "path", "url", "disabledRules")
    ):
        raise _config_error(
            "it extends another file, which is not read",
            hint="Name that file too, or put its rules into this one.",
        )


class _FileLimits:
    """Remaining limits of one file; each rule consumes some."""

    def __init__(self) -> None:
        self._instructions = _MAX_INSTRUCTIONS
        self._words = _MAX_WORDS

    def pattern(self, source: str, where: str) -> GroupedPattern:
        pattern = GroupedPattern(source)
        try:
            pattern.check()
        except BadInput as error:
            # The message quotes the pattern, which may have several lines.
            raise _config_error(f"{where}: {escaped(error.message)}", hint=error.hint) from None
        self._instructions -= pattern.instructions
        if self._instructions < 0:
            raise _config_error(
                f"{where}: with it, the expressions are larger than can be searched for",
                hint="Repeat classes of letters less often, or split the file's rules.",
            )
        return pattern

    def words(self, row: TomlTable, where: str) -> tuple[bytes, ...]:
        words = dict.fromkeys(w.lower().encode() for w in _list(row, "keywords", where) if w)
        if any(len(word) > _MAX_WORD_BYTES for word in words):
            raise _config_error(f"{where}: a keyword is longer than {_MAX_WORD_BYTES} bytes")
        self._words -= len(words)
        if self._words < 0:
            raise _config_error(f"it has more than {_MAX_WORDS} keywords")
        return tuple(words)


def _rule(row: TomlTable, number: int, limits: _FileLimits) -> SearchRule | None:
    where = f"rule {number}"
    name = _text(row, "id", where)
    if not name or sanitise_name(name) != name:
        raise _config_error(f"{where} has no id of letters, digits, `_` and `-`")
    where = f"rule {name!r}"
    source = _text(row, "regex", where)
    if not source:
        if "path" in row:
            return None  # of files alone
        raise _config_error(f"{where} has no regex")
    entropy, group = row.get("entropy", 0.0), row.get("secretGroup", 0)
    if isinstance(entropy, bool) or not isinstance(entropy, int | float):
        raise _config_error(f"{where}: entropy is not a number")
    if not 0 <= entropy <= _MAX_ENTROPY:  # nor NaN, which is neither
        raise _config_error(f"{where}: entropy is not a number of bits")
    if isinstance(group, bool) or not isinstance(group, int) or group < 0:
        raise _config_error(f"{where}: secretGroup is not a number")
    pattern = limits.pattern(source, where)
    if group > pattern.groups:
        raise _config_error(f"{where}: its regex has no group {min(group, 1000)}")
    over_lines = any(each in source for each in _MANY_LINES)
    return SearchRule(
        id=name,
        words=limits.words(row, where),
        pattern=pattern,
        group=group,
        min_entropy=float(entropy),
        allows=_allows(row, where, limits),
        ahead_bytes=_FAR_BYTES if over_lines else AHEAD_BYTES,
        reads_over_lines=over_lines,
    )


def _allows(table: TomlTable, where: str, limits: _FileLimits) -> tuple[Allow, ...]:
    old = table.get("allowlist")
    if old is not None and not isinstance(old, Mapping):
        raise _config_error(f"{where}: allowlist is not a table")
    rows = ([old] if isinstance(old, Mapping) else []) + _tables(table, "allowlists", where)
    return tuple(_allow(row, f"{where}, an allowlist", limits) for row in rows)


def _allow(row: TomlTable, where: str, limits: _FileLimits) -> Allow:
    target = _text(row, "regexTarget", where).lower() or "secret"
    condition = _text(row, "condition", where).upper() or "OR"
    if target not in _TARGETS:
        raise _config_error(f"{where}: regexTarget is none of {', '.join(_TARGETS)}")
    if condition not in ("OR", "AND", "||", "&&"):
        raise _config_error(f"{where}: condition is neither OR nor AND")
    (chosen,) = [each for each in _TARGETS if each == target]
    return Allow(
        patterns=tuple(limits.pattern(each, where) for each in _list(row, "regexes", where)),
        stopwords=tuple(w.lower().encode() for w in _list(row, "stopwords", where) if w),
        target=chosen,
        needs_all=condition in ("AND", "&&"),
        needs_path=bool(_list(row, "paths", where) or _list(row, "commits", where)),
        rules=tuple(_list(row, "targetRules", where)),
    )


def _tables(table: TomlTable, key: str, where: str) -> list[TomlTable]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise _config_error(f"{where}: {key} is not a list of tables")
    return rows


def _list(row: TomlTable, key: str, where: str) -> list[str]:
    values = row.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise _config_error(f"{where}: {key} is not a list of texts")
    return values


def _text(row: TomlTable, key: str, where: str) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise _config_error(f"{where}: {key} is not a text")
    return value


def _config_error(
    what: str, *, hint: str = "Write it as gitleaks documents its configuration."
) -> ConfigError:
    return ConfigError(f"a rule file cannot be used: {what}", hint=hint)
