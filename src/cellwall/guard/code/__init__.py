"""Screening of code that is about to run (GRD-9).

Findings are advice and input for the policy, never the boundary: an author who knows the screening
can evade it. The sandbox contains the code that the screening misses.
"""

from __future__ import annotations

from cellwall.guard.code.command_code import CodeArgument, code_in
from cellwall.guard.code.findings import PATTERN_RULE, RULES, CodePattern, CodeRule, parse_pattern
from cellwall.guard.code.screening import MAX_CHARACTERS, language_named, screen

__all__ = [
    "MAX_CHARACTERS",
    "PATTERN_RULE",
    "RULES",
    "CodeArgument",
    "CodePattern",
    "CodeRule",
    "code_in",
    "language_named",
    "parse_pattern",
    "screen",
]
