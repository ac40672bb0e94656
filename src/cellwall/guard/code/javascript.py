"""Screens JavaScript and TypeScript by one token scan (GRD-9).

The tokens are written in one canonical form (parsing/javascript), and the patterns of
javascript.toml are searched in that form.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from cellwall.guard.code.findings import Findings, check_name
from cellwall.parsing.budget import checked, checkpoint
from cellwall.parsing.javascript.canonical import CanonicalForm
from cellwall.parsing.javascript.patterns import TOKENS, expand
from cellwall.parsing.javascript.tokens import Tokenizer

_TABLES = tomllib.loads(Path(__file__).with_name("javascript.toml").read_text("utf-8"))
_WORDS_OF_RULES = {rule: words.split() for rule, words in _TABLES["words"].items()}


@cache
def _pattern(rule: str) -> re.Pattern[str]:
    """Compiled with its first use: most code needs few of the rules."""
    return re.compile(expand(_TABLES["rules"][rule]))


def screen_javascript(code: str, findings: Findings) -> None:
    """Add the findings of a piece of code."""
    tokenizer = Tokenizer(code)
    tokenizer.run()
    for doubt in tokenizer.doubts:
        findings.add("text.unparsable", *doubt)
    for kind, text, start, end in checked(tokenizer.tokens):
        if kind == "name":
            if len(text) != end - start:  # an escape is longer than its letter
                findings.add("javascript.escaped-name", start, end)
            check_name(text, start, findings)
        elif kind == "string" and "__proto__" in text and TOKENS["POLLUTING"].search(text):
            findings.add("javascript.pollution", start, end)
    form = CanonicalForm(code, tokenizer.tokens)
    for hidden in form.hidden_names:
        findings.add("javascript.hidden-name", *hidden)
    for rule, words in _WORDS_OF_RULES.items():
        checkpoint()
        if any(word in form.text for word in words):
            for match in _pattern(rule).finditer(form.text):
                if findings.is_full(f"javascript.{rule}"):
                    break
                if place := form.place(*match.span()):
                    findings.add(f"javascript.{rule}", *place)
