"""The examples that rules bring along, tried when they are loaded (POL-6). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import ToolCall, parse_call
from cellwall.policy.judge import Judgement
from cellwall.policy.rulebook import RuleBook
from cellwall.policy.rules import Rule
from cellwall.policy.subjects import look, only_itself

_CWD, _HOME = "/project", "/home/user"
"""Where examples are taken to stand."""


def check_examples(rules: Iterable[Rule]) -> None:
    """Raises `ConfigError` with all examples that do not hold."""
    problems = [problem for rule in rules for problem in _problems(rule)]
    if problems:
        raise ConfigError(
            "rules do not do what their examples say:\n" + "\n".join(problems),
            hint="Mend the rule or the example.",
            code="CW-BAD-EXAMPLE",
        )


def _problems(rule: Rule) -> list[str]:
    missed = [text for text in rule.match if not _is_hit(rule, text)]
    caught = [text for text in rule.not_match if _is_hit(rule, text)]
    return [f"{rule.source}: {rule.text} does not match {text!r}" for text in missed] + [
        f"{rule.source}: {rule.text} matches {text!r}" for text in caught
    ]


def _is_hit(rule: Rule, text: str) -> bool:
    """The example is a call, or only what would stand in its parentheses."""
    is_call = text.startswith((f"{rule.tool}(", "mcp__")) or text == rule.tool
    call = parse_call(text if is_call else f"{rule.tool}({text})", cwd=_CWD, home=_HOME)
    decision = _decided(RuleBook([replace(rule, is_untrusted=False)]), call)  # by its full name
    if rule.verdict is Verdict.ALLOW:
        return decision.verdict is Verdict.ALLOW
    return any(part.rule == rule.text for part in (decision, *decision.parts))


def _decided(book: RuleBook, call: ToolCall) -> Decision:
    if call.tool == "Bash":
        return Judgement(book, call.home, only_itself).text(str(call.input["command"]), call.cwd)
    return book.judge(look(call), call.tool)
