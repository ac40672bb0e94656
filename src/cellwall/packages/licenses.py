"""Licenses of packages: SPDX expressions, and whether an administrator denies them. Pure.

An expression is the registry's claim, untrusted and often missing: `MIT`, `(MIT OR GPL-3.0-only)`,
`Apache-2.0 WITH LLVM-exception`. With OR one acceptable license is enough, with AND each counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

MAX_EXPRESSION_CHARACTERS = 1000
_MAX_DEPTH = 20
_TOKEN = re.compile(r"\s*([()]|[A-Za-z0-9][A-Za-z0-9.+:-]*)")
_OPERATORS = frozenset(("AND", "OR", "WITH"))
# Classifiers of PyPI that name one license; others, such as "BSD License", name several.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 (LGPLv2)": "LGPL-2.0-only",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Zope Public License": "ZPL-2.1",
}


class LicenseState(Enum):
    """What the denied licenses say about an expression."""

    ACCEPTED = "accepted"
    DENIED = "denied"
    UNKNOWN = "unknown"


class _BadExpression(Exception):
    """Not an SPDX expression."""


def judge_license(expression: str | None, denied: Iterable[str]) -> LicenseState:
    """Whether the expression needs a denied license. `denied` are SPDX ids, `*` any text."""
    if not expression or len(expression) > MAX_EXPRESSION_CHARACTERS:
        return LicenseState.UNKNOWN
    try:
        found = _ExpressionParser(
            _tokens(expression), tuple(each.lower() for each in denied)
        ).parse()
        if found is LicenseState.ACCEPTED:
            canonicalize_license_expression(expression)  # `UNLICENSED` names no license
    except (_BadExpression, InvalidLicenseExpression):
        return LicenseState.UNKNOWN
    return found


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _BadExpression
        found.append(token[1])
        at = token.end()
    return found


_STRICTNESS = (LicenseState.ACCEPTED, LicenseState.UNKNOWN, LicenseState.DENIED)


class _ExpressionParser:
    """A recursive descent over OR, AND and parentheses; AND binds more strongly."""

    def __init__(self, tokens: Sequence[str], denied: Sequence[str]) -> None:
        self._tokens = tokens
        self._denied = denied
        self._at = 0

    def parse(self) -> LicenseState:
        found = self._alternatives(0)
        if self._at != len(self._tokens):
            raise _BadExpression
        return found

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _takes(self, operator: str) -> bool:
        if self._next().upper() != operator:
            return False
        self._at += 1
        return True

    def _alternatives(self, depth: int) -> LicenseState:
        found = [self._conjunction(depth)]
        while self._takes("OR"):
            found.append(self._conjunction(depth))
        return min(found, key=_STRICTNESS.index)

    def _conjunction(self, depth: int) -> LicenseState:
        found = [self._license(depth)]
        while self._takes("AND"):
            found.append(self._license(depth))
        return max(found, key=_STRICTNESS.index)

    def _license(self, depth: int) -> LicenseState:
        if depth > _MAX_DEPTH:
            raise _BadExpression
        if self._takes("("):
            found = self._alternatives(depth + 1)
            if not self._takes(")"):
                raise _BadExpression
            return found
        name = self._next()
        if not name or name in "()" or name.upper() in _OPERATORS:
            raise _BadExpression
        self._at += 1
        if self._takes("WITH"):  # an exception permits more, and does not change the license
            self._at += 1
        is_denied = any(fnmatchcase(name.lower(), each) for each in self._denied)
        return LicenseState.DENIED if is_denied else LicenseState.ACCEPTED


def pypi_license(info: Mapping[str, Any]) -> str | None:
    """The expression in PyPI's JSON: PEP 639, else one classifier, else a short `license`."""
    expression = info.get("license_expression")
    if isinstance(expression, str) and expression:
        return expression
    classifiers = info.get("classifiers")
    names = {
        _CLASSIFIERS[name]
        for each in (classifiers if isinstance(classifiers, list) else ())
        if isinstance(each, str) and (name := each.rpartition(" :: ")[2]) in _CLASSIFIERS
    }
    if names:
        # Several classifiers do not say whether one may choose: each counts.
        return " AND ".join(sorted(names))
    return _one_id(info.get("license"))


def npm_license(entry: Mapping[str, Any]) -> str | None:
    """The expression in a version of npm, or the old form `{"type": "MIT"}`."""
    found = entry.get("license")
    if isinstance(found, Mapping):
        found = found.get("type")
    return found if isinstance(found, str) and found and "SEE LICENSE" not in found else None


def _one_id(text: object) -> str | None:
    """A free text counts only where the text looks like an id: `MIT`, `BSD-3-Clause`."""
    is_id = isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{1,40}", text)
    return str(text) if is_id else None
