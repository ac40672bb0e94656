"""The policy: a tool call in, a decision out (POL-1 to POL-7). No match is DENY.

Defence in depth: the policy decides on what it understands, the sandbox contains the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Final

from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.packages import RegistryName
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import literals
from cellwall.policy.addresses import (
    REASONS,
    forbidden_in_urls,
    judge_address,
    kind_fetched,
    kind_of,
)
from cellwall.policy.calls import ToolCall, from_json, group_of, parse_call
from cellwall.policy.domains import host_of
from cellwall.policy.judge import Judgement
from cellwall.policy.links import targets
from cellwall.policy.package_rules import InstallRules, NamedRules, judge_install
from cellwall.policy.policy_file import builtin_rules, load_policy_file
from cellwall.policy.port_rules import PortRules, judge_port
from cellwall.policy.rulebook import RuleBook, refuse
from cellwall.policy.rules import BadRule, Layer, Rule
from cellwall.policy.subjects import Targets, look, only_itself


class Policy:
    """The rules of all layers. Immutable; may be shared between threads."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._book = RuleBook((*builtin_rules(), *rules))

    @classmethod
    def load(cls, *paths: str | os.PathLike[str], layer: Layer = Layer.SESSION) -> Policy:
        """From policy files, or an agent's own settings; reports all mistakes together."""
        home = os.path.expanduser("~")
        files = [load_policy_file(os.fspath(path), layer, home=home) for path in paths]
        return cls.of([rule for file in files for rule in file.rules])

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> Policy:
        """A policy of these rules, once their examples hold (POL-6)."""
        check_examples(rules)
        return cls(rules)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, the built-in ones first."""
        return self._book.rules

    @cached_property
    def packages(self) -> InstallRules:
        """The rules for packages."""
        return InstallRules(self.rules)

    @cached_property
    def ports(self) -> PortRules:
        """The rules for ports of sandboxes."""
        return PortRules.of(self.rules)

    def about_package(self, ecosystem: str, name: str) -> NamedRules:
        """The rules that name a package and count today."""
        return self.packages.about(ecosystem, name, today=_today())

    @property
    def expired(self) -> tuple[Rule, ...]:
        """The rules whose last day has passed."""
        return self.packages.expired(_today())

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

        `links` resolves the symbolic links in a path; `outside`: the command runs outside a
        sandbox.
        """
        if not isinstance(call, ToolCall):
            where = {
                "cwd": os.getcwd() if cwd is None else cwd,
                "home": os.path.expanduser("~") if home is None else home,
            }
            call = parse_call(call, **where) if isinstance(call, str) else from_json(call, **where)
        try:
            if group_of(call.tool) == "install":
                return judge_install(
                    self.packages, str(call.input.get("package", "")), today=_today()
                )
            if group_of(call.tool) == "port":
                return judge_port(self.ports, str(call.input.get("port", "")))
            return judge_call(self._book, call, links, is_outside=outside)
        except (BadInput, BadRule) as problem:
            return refuse(problem.message, call.tool, "bad-call")

    def check_argv(
        self, argv: Sequence[str], *, cwd: str, home: str, links: Targets = targets
    ) -> Decision:
        """Judge a program and its arguments that no shell expands."""
        return Judgement(self._book, home, links).words(literals(argv), cwd)


def _today() -> date:
    return datetime.now(UTC).date()


def registries_in(text: str, *, cwd: str, home: str) -> frozenset[RegistryName]:
    """The package registries from which the commands of a shell text install, wherever in it."""
    judgement = Judgement(RuleBook(()), home, only_itself)
    judgement.text(text, cwd)
    return frozenset(judgement.registries)


def judge_call(
    book: RuleBook, call: ToolCall, links: Targets, *, is_outside: bool = False
) -> Decision:
    """By the rules and the built-in checks; raises `BadInput` for an incomplete call."""
    if links is targets:  # a working directory that is a link is judged by its target
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
    return judge_address(decision, subject.host) if subject.host else decision


# Files and addresses in the input of tools of MCP servers and of other tools.
#
# A rule allows such a tool by its name; files and addresses that are denied to `Read`, `Write` and
# `WebFetch` are denied to the tool as well. The key decides what a value is: a mere mention of a
# path is no path.

_PATH_KEY: Final = re.compile(
    r"(?i)(?:path|paths|file|files|file[_-]?names?|dir|dirs|directory|folder|uri|uris|source"
    r"|destination|dest|src|dst|target|root|cwd|location|notebook|attachments?|glob|from|to)\Z"
)
_FOLDER_KEY: Final = re.compile(r"(?i)(?:path|dir|directory|folder|root|cwd|base|workspace)\Z")
_NAME_KEY: Final = re.compile(r"(?i)(?:name|names|pattern|glob|file|files|path|paths)\Z")
_ADDRESS_KEY: Final = re.compile(
    r"(?i)(?:url|urls|uri|uris|href|link|links|endpoint|host|hostname|server|origin|address)\Z"
)
_READING: Final = re.compile(
    r"(?i)(?:read|get|list|search|find|fetch|view|open|stat|show|query|describe|info|tree|exists"
    r"|head|tail|grep|glob|look|load|browse|navigate)"
)
_SCHEME: Final = re.compile(r"(?i)(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")
_WEB: Final = re.compile(r"(?i)\s*(?:https?|ftp|wss?):|//")
_MAX_VALUES: Final = 200


def names_files(tool_input: Mapping[str, Json]) -> bool:
    """Whether the input has a text that may name a file or an address."""
    return any(_texts(dict(tool_input))) or any(_joined_paths(dict(tool_input)))


def denied_in_input(
    book: RuleBook, call: ToolCall, what: str, *, targets: Targets
) -> Decision | None:
    """The first denial of a file or an address in the input."""
    tools = ("Read",) if _READING.search(call.tool.rpartition("__")[2]) else ("Read", "Write")
    for count, (key, value) in enumerate((*_texts(call.input), *_joined_paths(call.input))):
        if count >= _MAX_VALUES:
            return refuse("it names more files and addresses than can be judged in time", what)
        if _ADDRESS_KEY.search(key) and (trouble := _address_trouble(value)):
            return refuse(trouble, what, "addresses")
        is_file = _PATH_KEY.search(key) or value.lower().startswith("file:")
        if not is_file or _SCHEME.match(value):
            continue
        for tool in tools:
            found = _denial(book, call, tool, value, what, targets)
            if found is not None:
                return found
    return None


def _texts(tree: Json, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text of the input under a key that may name a file or an address, with that key."""
    if isinstance(tree, str):
        if tree and (_PATH_KEY.search(key) or _ADDRESS_KEY.search(key)):
            yield key, tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from _texts(value, name)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value, key)


def _joined_paths(tree: Json) -> Iterator[tuple[str, str]]:
    """A name that a tool looks for in a folder, which another key of the same object gives."""
    if isinstance(tree, list | tuple):
        for value in tree:
            yield from _joined_paths(value)
    if not isinstance(tree, dict):
        return
    folders = [x for key, x in tree.items() if _FOLDER_KEY.search(key) and isinstance(x, str)]
    for key, value in tree.items():
        yield from _joined_paths(value)
        names = value if isinstance(value, list | tuple) else [value]
        for name in names if _NAME_KEY.search(key) else ():
            for folder in folders:
                if isinstance(name, str) and name != folder and not name.startswith(("/", "~")):
                    yield "path", f"{folder.rstrip('/')}/{name}"


def _address_trouble(value: str) -> str | None:
    found = forbidden_in_urls(value)
    if found is not None:
        return f"{found[0][:60]} {REASONS[found[1]]}"
    host = value
    if _WEB.match(value):
        try:
            host = host_of(value)
        except BadInput as problem:
            return problem.message
    kind = kind_fetched(host) if host != value else kind_of(host)
    return None if kind in (None, "loopback") else f"{host[:60]} {REASONS[kind]}"


def _denial(
    book: RuleBook, call: ToolCall, tool: str, path: str, what: str, targets: Targets
) -> Decision | None:
    try:
        subject = look(ToolCall(tool, {"file_path": path}, call.cwd, call.home), targets=targets)
    except BadInput as problem:
        return refuse(problem.message, what, "bad-call")
    found = book.forbids([subject], what)
    return found if found is not None and found.verdict is Verdict.DENY else None


# The examples of rules, tried when the rules are loaded (POL-6).

_CWD, _HOME = "/project", "/home/user"
"""The working directory and home of examples."""


def check_examples(rules: Iterable[Rule]) -> None:
    """Raises `ConfigError` with all failed examples."""
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
    """An example is a call, or only the text in its parentheses."""
    is_call = text.startswith((f"{rule.tool}(", "mcp__")) or text == rule.tool
    call = parse_call(text if is_call else f"{rule.tool}({text})", cwd=_CWD, home=_HOME)
    if group_of(rule.tool) == "install":
        return _is_package_hit(rule, str(call.input["package"]))
    if group_of(rule.tool) == "port":
        trusted = replace(rule, is_untrusted=False)  # reported by its full name
        return judge_port(PortRules.of([trusted]), str(call.input["port"])).rule == rule.text
    decision = _judge_example(
        RuleBook([replace(rule, is_untrusted=False)]), call
    )  # by its full name
    if rule.verdict is Verdict.ALLOW:
        return decision.verdict is Verdict.ALLOW
    return any(part.rule == rule.text for part in (decision, *decision.parts))


def _is_package_hit(rule: Rule, package: str) -> bool:
    anytime = replace(rule, is_untrusted=False, until=None)
    decision = judge_install(InstallRules([anytime]), package, today=date.min)
    return decision.rule == rule.text


def _judge_example(book: RuleBook, call: ToolCall) -> Decision:
    if call.tool == "Bash":
        return Judgement(book, call.home, only_itself).text(str(call.input["command"]), call.cwd)
    return book.judge(look(call), call.tool)
