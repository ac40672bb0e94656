"""Screening of code that somebody wants to run: what in it is worth knowing (GRD-9).

Advice and input for the policy, never the boundary: whoever wants to get past it can. The walls of
the sandbox hold what it does not see.
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
