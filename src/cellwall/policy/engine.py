"""The policy: a tool call in, a decision out (POL-1 to POL-7). No match is DENY.

Defence in depth: the policy decides on what it understands, the sandbox contains the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import literals
from cellwall.policy.addresses_reached import denied_in_input, judged_address
from cellwall.policy.calls import ToolCall, from_json, parse_call
from cellwall.policy.judge import Judgement
from cellwall.policy.links import targets
from cellwall.policy.policy_file import builtin_rules, load_policy_file
from cellwall.policy.rulebook import RuleBook, denied
from cellwall.policy.rules import Layer, Rule
from cellwall.policy.subjects import Targets, look, only_itself


class Policy:
    """The rules of all layers. Immutable; may be shared between threads."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._book = RuleBook((*builtin_rules(), *rules))

    @classmethod
    def load(cls, *paths: str | os.PathLike[str], layer: Layer = Layer.SESSION) -> Policy:
        """From policy files, or an agent's own settings; every mistake in them is told together."""
        home = os.path.expanduser("~")
        files = [load_policy_file(os.fspath(path), layer, home=home) for path in paths]
        return cls.of([rule for file in files for rule in file.rules])

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> Policy:
        """With the examples that the rules bring along checked (POL-6)."""
        check_examples(rules)
        return cls(rules)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, the built-in ones first."""
        return self._book.rules

    def check(
        self,
        call: str | ToolCall | Mapping[str, Json],
        *,
        cwd: str | None = None,
        home: str | None = None,
        links: Targets = targets,
        outside: bool = False,
    ) -> Decision:
        """Judge one call: `"Bash(git push)"`, or `{"tool": "Bash", "input": {"command": …}}`.

        `links` tells where the symbolic links on the way to a file lead; `outside`: a command will
        run outside of a sandbox.
        """
        if not isinstance(call, ToolCall):
            where = {
                "cwd": os.getcwd() if cwd is None else cwd,
                "home": os.path.expanduser("~") if home is None else home,
            }
            call = parse_call(call, **where) if isinstance(call, str) else from_json(call, **where)
        try:
            return judge_call(self._book, call, links, is_outside=outside)
        except BadInput as problem:
            return denied(problem.message, call.tool, "bad-call")

    def check_argv(
        self, argv: Sequence[str], *, cwd: str, home: str, links: Targets = targets
    ) -> Decision:
        """Judge a program and its arguments that no shell will touch."""
        return Judgement(self._book, home, links).words(literals(argv), cwd)


def judge_call(
    book: RuleBook, call: ToolCall, links: Targets, *, is_outside: bool = False
) -> Decision:
    """By the rules of a book and by what no rule says; raises `BadInput` for half of a call."""
    if links is targets:  # a folder by the name of a link is judged as what it is
        real = os.path.realpath(call.cwd)
        call = call if real == call.cwd else replace(call, cwd=real)
    if call.tool == "Bash":
        command = call.input.get("command")
        if not isinstance(command, str):
            raise BadInput("Bash was called without a command")
        return Judgement(book, call.home, links, is_outside=is_outside).text(command, call.cwd)
    subject = look(call, targets=links)
    what = f"{call.tool}({', '.join(subject.paths[:1]) or subject.host or subject.language})"
    decision = book.judge(subject, what)
    if subject.group in ("mcp", "other") and decision.verdict is not Verdict.DENY:
        named = denied_in_input(book, call, what, targets=links)
        decision = decision if named is None else named
    return judged_address(decision, subject.host) if subject.host else decision


# The examples that rules bring along, tried when they are loaded (POL-6).

_CWD, _HOME = "/project", "/home/user"
"""Where examples are taken to stand."""


def check_examples(rules: Iterable[Rule]) -> None:
    """Raises `ConfigError` with all examples that do not hold."""
    problems = [problem for rule in rules for problem in _problems(rule)]
    if problems:
        raise ConfigError(
            "rules do not do what their examples say:\n" + "\n".join(problems),
            hint="Correct the rule or the example.",
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
    decision = _judge_example(
        RuleBook([replace(rule, is_untrusted=False)]), call
    )  # by its full name
    if rule.verdict is Verdict.ALLOW:
        return decision.verdict is Verdict.ALLOW
    return any(part.rule == rule.text for part in (decision, *decision.parts))


def _judge_example(book: RuleBook, call: ToolCall) -> Decision:
    if call.tool == "Bash":
        return Judgement(book, call.home, only_itself).text(str(call.input["command"]), call.cwd)
    return book.judge(look(call), call.tool)
