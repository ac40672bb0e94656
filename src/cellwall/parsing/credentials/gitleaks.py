"""Rule files in the gitleaks format, so that users can bring the set they know.

What is understood: `regex`, `secretGroup`, `entropy`, `keywords`, and allowlists at both levels
with `regexes`, `stopwords`, `regexTarget`, `condition` and `targetRules`. Paths say nothing here:
a text has none, so rules of paths alone are left out, and an allowlist of paths allows nothing.
Go's expressions are RE2's, so all of them run in linear time.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cellwall.core.errors import BadInput, ConfigError
from cellwall.parsing.credentials.entropy import shannon
from cellwall.parsing.credentials.rules import SecretRules
from cellwall.parsing.credentials.spans import MARK_BEGINNING, Around, Span, tellable
from cellwall.parsing.matching import Pattern

Target = Literal["secret", "match", "line"]

_MAX_RULES = 5000
_MAX_CHARACTERS = 2 << 20
_MAX_INSTRUCTIONS = 2_000_000
"""Of all expressions together, as RE2 counts them: gitleaks' own 221 have 173,000. A short line can
ask for a million, which are a second and a hundred megabytes."""
_MAX_WORDS = 20_000
_MAX_WORD_BYTES = 200
_MAX_DOTS = 500
_MAX_ENTROPY = 64.0
_LINE_BYTES = 4096
"""Of a line that an allowlist sees, before and behind the secret."""
_BACK_BYTES = 512
_AHEAD_BYTES = 4096
_FAR_BYTES = 16 * 1024
_NEAR_BYTES = 1024
_LINES = 3
"""That a rule sees from its word on, unless it says that it reads over lines."""
_MANY_LINES = (r"[\s\S", r"(?s", r"\n", r"\r", r"[[:space:]]")
_TARGETS: tuple[Target, ...] = ("secret", "match", "line")

Table = Mapping[str, object]


class GroupedPattern(Pattern):
    """An expression whose matches tell where their groups are."""

    @property
    def instructions(self) -> int:
        return int(self._compiled.programsize)

    @property
    def groups(self) -> int:
        return int(self._compiled.groups)

    def grouped_spans(self, data: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
        """Where it matches, and where each group does; (-1, -1) for one that took no part."""
        numbers = range(self.groups + 1)
        for match in self._compiled.finditer(data):
            spans = tuple(match.span(number) for number in numbers)
            if spans[0][1] > spans[0][0]:
                yield spans


@dataclass(frozen=True)
class Allow:
    """What is no secret although a rule finds it."""

    patterns: tuple[Pattern, ...] = ()
    stopwords: tuple[bytes, ...] = ()
    target: Target = "secret"
    needs_all: bool = False
    needs_path: bool = False
    rules: tuple[str, ...] = ()
    """For these alone; for all if there is none."""

    def allows(self, secret: bytes, match: bytes, line: bytes) -> bool:
        text = {"secret": secret, "match": match, "line": line}[self.target]
        small = secret.lower()
        said: list[bool] = []
        if self.patterns:
            said.append(any(pattern.matches(text) for pattern in self.patterns))
        if self.stopwords:
            said.append(any(word in small for word in self.stopwords))
        if self.needs_all:
            return bool(said) and all(said) and not self.needs_path
        return any(said)


@dataclass(frozen=True)
class SearchRule:
    """An expression that is searched for around its words."""

    id: str
    words: tuple[bytes, ...]
    pattern: GroupedPattern
    group: int = 0
    min_entropy: float = 0.0
    allows: tuple[Allow, ...] = ()
    ahead_bytes: int = _AHEAD_BYTES
    reads_over_lines: bool = False

    def has_seen(self, data: bytes, last: int | None, start: int) -> bool:
        """Whether a look at the word before has seen what there is to see at this one.

        Else a text of nothing but words would be searched through once for each.
        """
        if last is None or start - last > _NEAR_BYTES:
            return False
        return self.reads_over_lines or data.find(b"\n", last, start) < 0

    def look(
        self,
        data: bytes,
        start: int,
        end: int,
        *,
        is_final: bool,
        around: Around,  # noqa: ARG002  # as all rules are asked; these have borders of their own
    ) -> Iterator[int | Span]:
        """What there is to wait for, and what goes, around the word that stands at `start`."""
        stop = self._stop(data, end)
        if stop is None:
            if not is_final:
                # It may hold the word itself, and what stands right before it.
                yield _before_word(data, start)
                return
            stop = len(data)
        ahead = max(0, start - _BACK_BYTES)
        first = max(data.rfind(b"\n", ahead, start) + 1, ahead)
        yield from self._found(data, first, stop)

    def lines(self, data: bytes, start: int, stop: int) -> Iterator[Span]:
        """In whole lines, for a rule that has no words."""
        yield from self._found(data, start, stop)

    def _stop(self, data: bytes, end: int) -> int | None:
        stop = end
        for _ in range(0 if self.reads_over_lines else _LINES):
            found = data.find(b"\n", stop, end + self.ahead_bytes)
            if found < 0:
                break
            stop = found + 1
        else:
            if not self.reads_over_lines:
                return stop
        return end + self.ahead_bytes if len(data) >= end + self.ahead_bytes else None

    def _found(self, data: bytes, first: int, stop: int) -> Iterator[Span]:
        part = data[first:stop]
        for match, *groups in self.pattern.grouped_spans(part):
            span = self._secret(match, groups)
            secret = part[slice(*span)]
            if self.min_entropy and shannon(secret) <= self.min_entropy:
                continue
            if MARK_BEGINNING in secret or self._is_allowed(part, match, span):
                continue
            yield Span(first + span[0], first + span[1], self.id)

    def _secret(self, match: tuple[int, int], groups: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The group that is named; else the first that is not empty; else all of the match."""
        wanted = groups[self.group - 1 : self.group] if self.group else groups
        return next((span for span in wanted if 0 <= span[0] < span[1]), match)

    def _is_allowed(self, part: bytes, match: tuple[int, int], span: tuple[int, int]) -> bool:
        if not self.allows:
            return False
        # In a text of one line, this would else be all of it for each match.
        ahead, behind = max(0, span[0] - _LINE_BYTES), span[1] + _LINE_BYTES
        first = part.rfind(b"\n", ahead, span[0])
        last = part.find(b"\n", span[0], behind)
        line = part[first + 1 if first >= 0 else ahead : last if last >= 0 else behind]
        secret, whole = part[slice(*span)], part[slice(*match)]
        return any(allow.allows(secret, whole, line) for allow in self.allows)


def _before_word(data: bytes, start: int) -> int:
    first = max(0, start - _BACK_BYTES)
    while start > first and not data[start - 1 : start].isspace():
        start -= 1
    return start


def load_gitleaks(text: str) -> SecretRules:
    """The rules of such a file; `ConfigError` says what is wrong with it."""
    if len(text) > _MAX_CHARACTERS:
        raise _bad(f"it is longer than {_MAX_CHARACTERS} characters")
    # Its reader keeps every beginning of a dotted key: of 20,000 parts those are a gigabyte.
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise _bad(f"a line has more than {_MAX_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a plain ValueError
        raise _bad(f"it is not TOML: {str(error)[:200]}") from None
    _refuse_extension(table)
    rows = _tables(table, "rules", "the file")
    if len(rows) > _MAX_RULES:
        raise _bad(f"it has more than {_MAX_RULES} rules")
    room = _Room()
    everywhere = _allows(table, "the file", room)
    found = (_rule(row, number, room) for number, row in enumerate(rows, 1))
    rules = [rule for rule in found if rule is not None]
    if not rules:
        raise _bad("it has no rule with a regex")
    twice = [name for name, count in Counter(rule.id for rule in rules).items() if count > 1]
    if twice:
        raise _bad(f"two rules have the id {twice[0][:80]!r}")
    return SecretRules(searches=tuple(_with(rule, everywhere) for rule in rules))


def _with(rule: SearchRule, everywhere: tuple[Allow, ...]) -> SearchRule:
    more = tuple(allow for allow in everywhere if not allow.rules or rule.id in allow.rules)
    return replace(rule, allows=rule.allows + more)


def _refuse_extension(table: Table) -> None:
    extend = table.get("extend")
    if extend is None:
        return
    if not isinstance(extend, Mapping) or any(
        extend.get(key) for key in ("useDefault", "path", "url", "disabledRules")
    ):
        raise _bad(
            "it extends another file, which is not read",
            hint="Name that file too, or put its rules into this one.",
        )


class _Room:
    """What a file may still ask for; each rule takes of it."""

    def __init__(self) -> None:
        self._instructions = _MAX_INSTRUCTIONS
        self._words = _MAX_WORDS

    def pattern(self, source: str, where: str) -> GroupedPattern:
        pattern = GroupedPattern(source)
        try:
            pattern.check()
        except BadInput as error:
            raise _bad(f"{where}: {error.message}", hint=error.hint) from None
        self._instructions -= pattern.instructions
        if self._instructions < 0:
            raise _bad(
                f"{where}: with it, the expressions are larger than can be searched for",
                hint="Repeat classes of letters less often, or split the file's rules.",
            )
        return pattern

    def words(self, row: Table, where: str) -> tuple[bytes, ...]:
        words = dict.fromkeys(w.lower().encode() for w in _list(row, "keywords", where) if w)
        if any(len(word) > _MAX_WORD_BYTES for word in words):
            raise _bad(f"{where}: a keyword is longer than {_MAX_WORD_BYTES} bytes")
        self._words -= len(words)
        if self._words < 0:
            raise _bad(f"it has more than {_MAX_WORDS} keywords")
        return tuple(words)


def _rule(row: Table, number: int, room: _Room) -> SearchRule | None:
    where = f"rule {number}"
    name = _text(row, "id", where)
    if not name or tellable(name) != name:
        raise _bad(f"{where} has no id of letters, digits, `_` and `-`")
    where = f"rule {name!r}"
    source = _text(row, "regex", where)
    if not source:
        if "path" in row:
            return None  # of files alone
        raise _bad(f"{where} has no regex")
    entropy, group = row.get("entropy", 0.0), row.get("secretGroup", 0)
    if isinstance(entropy, bool) or not isinstance(entropy, int | float):
        raise _bad(f"{where}: entropy is not a number")
    if not 0 <= entropy <= _MAX_ENTROPY:  # nor NaN, which is neither
        raise _bad(f"{where}: entropy is not a number of bits")
    if isinstance(group, bool) or not isinstance(group, int) or group < 0:
        raise _bad(f"{where}: secretGroup is not a number")
    pattern = room.pattern(source, where)
    if group > pattern.groups:
        raise _bad(f"{where}: its regex has no group {min(group, 1000)}")
    over_lines = any(each in source for each in _MANY_LINES)
    return SearchRule(
        id=name,
        words=room.words(row, where),
        pattern=pattern,
        group=group,
        min_entropy=float(entropy),
        allows=_allows(row, where, room),
        ahead_bytes=_FAR_BYTES if over_lines else _AHEAD_BYTES,
        reads_over_lines=over_lines,
    )


def _allows(table: Table, where: str, room: _Room) -> tuple[Allow, ...]:
    old = table.get("allowlist")
    if old is not None and not isinstance(old, Mapping):
        raise _bad(f"{where}: allowlist is not a table")
    rows = ([old] if isinstance(old, Mapping) else []) + _tables(table, "allowlists", where)
    return tuple(_allow(row, f"{where}, an allowlist", room) for row in rows)


def _allow(row: Table, where: str, room: _Room) -> Allow:
    target = _text(row, "regexTarget", where).lower() or "secret"
    condition = _text(row, "condition", where).upper() or "OR"
    if target not in _TARGETS:
        raise _bad(f"{where}: regexTarget is none of {', '.join(_TARGETS)}")
    if condition not in ("OR", "AND", "||", "&&"):
        raise _bad(f"{where}: condition is neither OR nor AND")
    (chosen,) = [each for each in _TARGETS if each == target]
    return Allow(
        patterns=tuple(room.pattern(each, where) for each in _list(row, "regexes", where)),
        stopwords=tuple(w.lower().encode() for w in _list(row, "stopwords", where) if w),
        target=chosen,
        needs_all=condition in ("AND", "&&"),
        needs_path=bool(_list(row, "paths", where) or _list(row, "commits", where)),
        rules=tuple(_list(row, "targetRules", where)),
    )


def _tables(table: Table, key: str, where: str) -> list[Table]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise _bad(f"{where}: {key} is not a list of tables")
    return rows


def _list(row: Table, key: str, where: str) -> list[str]:
    found = row.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _bad(f"{where}: {key} is not a list of texts")
    return found


def _text(row: Table, key: str, where: str) -> str:
    found = row.get(key, "")
    if not isinstance(found, str):
        raise _bad(f"{where}: {key} is not a text")
    return found


def _bad(
    what: str, *, hint: str = "Write it as gitleaks documents its configuration."
) -> ConfigError:
    return ConfigError(f"a rule file cannot be used: {what}", hint=hint)
