"""Screens a piece of code with the screener of its language."""

# ruff: noqa: PLC0415  # late imports: the screener of a language is loaded with its first code
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cellwall.core.errors import CellwallError
from cellwall.core.languages import canonical
from cellwall.guard.clean_texts import CleanTexts
from cellwall.guard.code.findings import CodePattern, Findings, check_words, find_signs
from cellwall.guard.report import Hit
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, grant

_DIALECTS = {"tsx": "typescript", "jsx": "javascript", "zsh": "shell"}
MAX_CHARACTERS = 1 << 17
"""Hostile code of this length takes up to 2 s and 200 MB; longer code is reported, not read."""
_BASE_S = 4.0
"""Processor time for any code. Ordinary code of MAX_CHARACTERS takes a tenth."""
_clean = CleanTexts()


def screen(
    code: str,
    language: str,
    *,
    max_characters: int = MAX_CHARACTERS,
    patterns: Sequence[CodePattern] = (),
) -> tuple[Hit, ...]:
    """The findings in a piece of code, in characters. Never raises; a finding reports code that
    cannot be screened. `patterns` apply to every language, and to code of any length."""
    digest = None if patterns or max_characters != MAX_CHARACTERS else _clean.digest(code, language)
    if _clean.score(digest) is not None:
        return ()
    hits = _screen(code, language, max_characters, patterns)
    if not hits:
        _clean.add(digest)
    return hits


def _screen(
    code: str, language: str, max_characters: int, patterns: Sequence[CodePattern]
) -> tuple[Hit, ...]:
    findings = Findings()
    for pattern in patterns:
        findings.add_pattern(code, pattern)
    find_signs(code, findings)
    if len(code) > max_characters:
        findings.add("text.too-long", 0, len(code))
        check_words(code, findings)
        return findings.hits()
    screener = screener_of(language)
    if screener is None:
        findings.add("text.language", 0, len(code))
        check_words(code, findings)
    else:
        budget = ScanBudget(base_s=_BASE_S)
        grant(budget, len(code))
        try:
            with budget.running():
                screener(code, findings)
        except ScanUnfinished:
            findings.add("text.not-finished", 0, len(code))
    return findings.hits()


def screener_of(language: str) -> Callable[[str, Findings], None] | None:
    """The screener of a language, imported with the first code of that language."""
    name = language_named(language)
    if name == "python":
        from cellwall.guard.code.python_screening import screen_python

        return screen_python
    if name in {"javascript", "typescript"}:
        from cellwall.guard.code.javascript import screen_javascript

        return screen_javascript
    if name == "shell":
        from cellwall.guard.code.shell_screening import screen_shell

        return partial(screen_shell, screener_of=screener_of)
    return None


def language_named(language: str) -> str | None:
    """The one name of a language that is screened."""
    name = language.strip().lower()
    try:
        return _DIALECTS.get(name) or canonical(name)
    except CellwallError:
        return None
