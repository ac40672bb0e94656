"""Tricks with names that only npm has: marks of JavaScript, and scopes (PKG-1).

`ethersjs`, `lodash.js` and `node-axios` are popular names with a mark that says nothing;
`@lodash/lodash` puts a popular name under a scope that anybody can register, and
`@typescript_eslinter/parser` imitates the scope itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from cellwall.packages.names import NameIndex, NameTrick

_MARKS = re.compile(
    r"^(?:node-?|nodejs-|js-)(?=[a-z]{4})|(?<=[a-z]{3})(?:[.-]?js|[.-]ts|-node|-npm)$"
)
_MARKED_RANK = 6000
_MISSPELLED_RANK = 6000
_SCOPED_RANK = 1500
_MIN_LETTERS = 4
_MIN_LONG_LETTERS = 6
_OWN_SCOPES = ("", "js", "-js", ".js", "org", "-org", "io", "hq", "team", "-team", "official")


class NpmNameIndex(NameIndex):
    """The ranked names of npm."""

    def __init__(self, ranked: Sequence[str], references: Iterable[str] = ()) -> None:
        super().__init__(ranked, references)
        scoped = [name for name in ranked if name.startswith("@")]
        self._scopes = dict.fromkeys(name.partition("/")[0][1:] for name in scoped)
        self._first_of_scope: dict[str, str] = {}
        for name in scoped:
            self._first_of_scope.setdefault(name.partition("/")[0][1:], name)
        self._scope_index = NameIndex(
            [scope for scope in self._scopes if len(scope) >= _MIN_LONG_LETTERS]
        )

    def _compare(self, name: str) -> Iterator[tuple[NameTrick, str]]:
        yield from super()._compare(name)
        scope, _, package = name.removeprefix("@").rpartition("/")
        if name.startswith("@") and scope:
            yield from self._compare_scope(scope, package)
        else:
            yield from self._compare_marked(name)

    def _compare_marked(self, name: str) -> Iterator[tuple[NameTrick, str]]:
        base = _MARKS.sub("", name)
        if base == name or len(base) < _MIN_LETTERS:
            return
        if self._popularity(base) <= _MARKED_RANK:
            yield NameTrick.AFFIX, base
        limit = _MISSPELLED_RANK if len(base) >= _MIN_LONG_LETTERS else _SCOPED_RANK
        for trick, target in super()._compare(base):
            if target != name and self._popularity(target) <= limit:
                yield trick, target

    def _compare_scope(self, scope: str, package: str) -> Iterator[tuple[NameTrick, str]]:
        if scope in self._scopes:
            return  # the registry gives a scope to one owner
        is_own = any(scope == package + ending for ending in _OWN_SCOPES)
        if is_own and self._popularity(package) <= _SCOPED_RANK:
            yield NameTrick.SCOPE, package
        for target in self._imitated_scopes(scope):
            same = f"@{target}/{package}"
            yield NameTrick.SCOPE, same if self.rank(same) else self._first_of_scope[target]

    def _imitated_scopes(self, scope: str) -> Iterator[str]:
        found = self._scope_index.resemblances(re.sub(r"[._]", "-", scope))
        spelling = (NameTrick.SEPARATOR, NameTrick.LOOKALIKE, NameTrick.TRANSPOSITION)
        yield from (each.target for each in found if each.trick in spelling)
        plain = re.sub(r"[._]", "-", scope)
        for cut in (1, 2):  # `typescript-eslinter`
            if plain[:-cut] in self._scopes and len(plain) - cut >= 2 * _MIN_LONG_LETTERS:
                yield plain[:-cut]
