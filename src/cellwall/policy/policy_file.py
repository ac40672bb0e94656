"""Parses policy files into rules, or one error with the position and hint of every mistake.

A policy file is TOML or JSON: `[permissions]` with the arrays `allow`, `ask`, `deny`, and tables
`[[rule]]`. An unknown key is a mistake, since it could be a denial that a user relies on. In Claude
Code's `settings.json` only the three arrays count, and no other key loosens a rule, `defaultMode`
included.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache
from importlib import resources

from cellwall.config.settings_file import UNSAFE, Fault, FileRefused, KeyPath, read_settings
from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import group_of
from cellwall.policy.package_rules import LIFTABLE_LIMITS
from cellwall.policy.paths import normalise
from cellwall.policy.positions import (
    MAX_VALUES,
    VERDICTS,
    Document,
    DocumentParser,
    quote_start,
    read_document,
)
from cellwall.policy.protected_rules import protected_rules
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import OTHERWISE, BadRule, Layer, Rule, Source

MAX_EXAMPLES = 64
MAX_TEXT_CHARACTERS = 4096

_TOP_KEYS = ("permissions", "rule")
_PACKAGE_KEYS = ("until", "lifts")
_RULE_KEYS = ("verdict", "rule", "reason", "match", "not_match", "answers", "unless", "stop")

_CLAUDE_NAMES = frozenset({"settings.json", "settings.local.json", "managed-settings.json"})
_CLAUDE_KEYS = frozenset({"defaultMode", "additionalDirectories", "disableBypassPermissionsMode"})
_CLAUDE_TOP_KEYS = frozenset(
    {"env", "hooks", "model", "statusLine", "apiKeyHelper", "enabledPlugins"}
)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The rules of one policy file."""

    file: str
    """The name of the file in messages."""
    layer: Layer
    rules: tuple[Rule, ...]
    is_claude: bool = False
    sha256: str = ""
    """The digest of the text that the rules were parsed from."""


def load_policy_file(
    path: str, layer: Layer, *, home: str, shown: str | None = None, folder: str | None = None
) -> PolicyFile:
    """Reads one file. `folder` is the folder of `/path` in it, if that is not the file's own.

    `shown` is the path in rules and errors (ERR-1).
    """
    named = _shown_path(path, home) if shown is None else shown
    text = read_text(path, shown=named, layer=layer)
    base = _folder_of(path, layer) if folder is None else folder
    return parse_policy(text, file=named, name=os.path.basename(path), layer=layer, folder=base)


def parse_policy(text: str, *, file: str, name: str, layer: Layer, folder: str) -> PolicyFile:
    """The rules in a text; the suffix of `name` decides the format. Pure."""
    is_json = name.endswith(".json")
    document = read_document(text, file=file, code="CW-POLICY", is_json=is_json)
    is_claude = is_json and _is_claude(document.value, name)
    reader = _PolicyFileParser(document, file, layer, folder, is_claude=is_claude)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return PolicyFile(file, layer, reader.read(), is_claude, digest)


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """The denials that no policy can lift, each with its reason (POL-4)."""
    text = resources.files("cellwall.policy").joinpath("builtin.toml").read_text("utf-8")
    document = Document(text, tomllib.loads(text))
    written = _PolicyFileParser(document, "built-in", Layer.BUILT_IN, "", is_claude=False).read()
    return (*written, *protected_rules())


def _shown_path(path: str, home: str) -> str:
    inside = normalise(home)
    whole = normalise(path, os.getcwd())
    shown = "~" + whole[len(inside) :] if inside != "/" and whole.startswith(inside + "/") else path
    return "".join(char if char.isprintable() else "?" for char in shown[:300])


def _folder_of(path: str, layer: Layer) -> str:
    folder = os.path.dirname(normalise(path, os.getcwd()))
    # Paths in a project's Claude Code settings are relative to the project folder.
    if layer >= Layer.PROJECT and os.path.basename(folder) in {".claude", ".cellwall"}:
        return os.path.dirname(folder)
    return folder


def _is_claude(value: object, name: str) -> bool:
    if name in _CLAUDE_NAMES:
        return True
    if not isinstance(value, dict):
        return False
    permissions = value.get("permissions")
    inner = permissions.keys() if isinstance(permissions, dict) else ()
    return bool(_CLAUDE_KEYS & set(inner) or _CLAUDE_TOP_KEYS & value.keys())


@dataclass(slots=True)
class _PolicyFileParser(DocumentParser):
    """Collects the rules and the mistakes of one document."""

    layer: Layer
    folder: str
    is_claude: bool = field(kw_only=True)
    rules: list[Rule] = field(default_factory=list)

    def read(self) -> tuple[Rule, ...]:
        top = self.table((), self.document.value)
        if not self.is_claude:
            self.refuse_unknown((), top, (*_TOP_KEYS, "$schema"))
        permissions = self.table(("permissions",), top.get("permissions", {}))
        if not self.is_claude:
            self.refuse_unknown(("permissions",), permissions, (*VERDICTS, OTHERWISE))
            self.read_otherwise(permissions.get(OTHERWISE, "deny"))
        for word, verdict in VERDICTS.items():
            path: KeyPath = ("permissions", word)
            for place, text in self.texts(path, permissions.get(word, [])):
                self.add(place, text, verdict)
        if not self.is_claude:
            self.read_rules(top.get("rule", []))
        if len(self.rules) > MAX_VALUES:
            self.wrong((), f"more than {MAX_VALUES} rules", "Write fewer and wider rules.")
        self.report(code="CW-POLICY", hint="Nothing was run. Correct the file and try again.")
        return tuple(self.rules)

    def read_otherwise(self, found: object) -> None:
        """The verdict for a call that no rule of the file matches: ask or deny."""
        path: KeyPath = ("permissions", OTHERWISE)
        if found not in {"ask", "deny"}:
            self.wrong(path, "this is neither ask nor deny", 'Write otherwise = "ask".')
        elif found == "ask":
            # Without the file's path: models see the reason as well.
            reason = "no rule matches this"
            self.rules.append(
                Rule(Verdict.ASK, OTHERWISE, None, self.source(path), self.layer, reason)
            )

    def read_rules(self, found: object) -> None:
        if not isinstance(found, list):
            self.wrong(("rule",), "this is not a list of tables", "Write [[rule]] above each.")
            return
        for number, each in enumerate(found[: MAX_VALUES + 1]):
            path: KeyPath = ("rule", number)
            table = self.table(path, each)
            self.refuse_unknown(path, table, (*_RULE_KEYS, *_PACKAGE_KEYS))
            if isinstance(each, dict):
                self.read_rule(path, table)

    def read_rule(self, path: KeyPath, table: Mapping[str, object]) -> None:
        verdict, text = self.verdict(path, table), table.get("rule")
        if not isinstance(text, str):
            hint = 'Write for example rule = "Bash(git push *)".'
            self.wrong((*path, "rule"), "the rule is missing or not a text", hint)
        reason = self.text((*path, "reason"), table.get("reason", ""))
        match, not_match = (
            tuple(each for _, each in self.examples((*path, key), table.get(key, [])))
            for key in ("match", "not_match")
        )
        answers = self.text((*path, "answers"), table.get("answers", ""))
        if answers and verdict is not Verdict.ALLOW:
            hint = 'Write verdict = "allow", or take it out.'
            self.wrong((*path, "answers"), "only a rule that allows answers a question", hint)
        stops = table.get("stop", False)
        if not isinstance(stops, bool):
            self.wrong((*path, "stop"), "this is neither true nor false", "Write stop = true.")
        elif stops and verdict is not Verdict.DENY:
            hint = 'Write verdict = "deny", or take it out.'
            self.wrong((*path, "stop"), "only a rule that denies stops an agent", hint)
        if verdict is not None and isinstance(text, str):
            unless = tuple(
                each for _, each in self.examples((*path, "unless"), table.get("unless", []))
            )
            if unless and verdict is not Verdict.DENY:
                hint = 'Write verdict = "deny", or take it out.'
                self.wrong((*path, "unless"), "only a rule that denies has exceptions", hint)
            rule = self.add((*path, "rule"), text, verdict)
            if rule is not None:
                until, lifts = self.read_exception(path, table, rule)
                rule = replace(rule, until=until, lifts=lifts)
                rule = replace(rule, reason=reason, match=match, not_match=not_match)
                rule = replace(rule, answers=answers, unless=unless, stops=stops is True)
                self.rules[-1] = rule

    def read_exception(
        self, path: KeyPath, table: Mapping[str, object], rule: Rule
    ) -> tuple[date | None, tuple[str, ...]]:
        """The last day of a rule for packages, and the limits that the rule lifts."""
        until, named = table.get("until"), table.get("lifts", [])
        if (until is not None or named) and group_of(rule.tool) != "install":
            hint = 'Take it out, or write a rule such as rule = "Install(pypi:requests)".'
            key = "until" if until is not None else "lifts"
            self.wrong((*path, key), "only a rule for packages has this key", hint)
            return None, ()
        lifts = tuple(each for _, each in self.examples((*path, "lifts"), named))
        unknown = sorted(set(lifts) - LIFTABLE_LIMITS)
        if unknown:
            known = ", ".join(sorted(LIFTABLE_LIMITS))
            problem = f"{quote_start(unknown[0])} is no limit that a rule can lift"
            self.wrong((*path, "lifts"), problem, f"The limits are {known}.")
        if lifts and rule.verdict is not Verdict.ALLOW:
            hint = 'Write verdict = "allow", or take it out.'
            self.wrong((*path, "lifts"), "only a rule that allows lifts a limit", hint)
        if lifts and until is None:
            hint = "Write for example until = 2027-06-30."
            self.wrong((*path, "lifts"), "a rule that lifts a limit needs a last day", hint)
        if lifts and self.layer is Layer.PROJECT:
            hint = "Write the rule into your own policy file."
            self.wrong((*path, "lifts"), "a project's rule cannot lift a limit", hint)
        return self.day((*path, "until"), until), lifts

    def day(self, path: KeyPath, value: object) -> date | None:
        """A date of TOML, or its text, which JSON has instead."""
        if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            return value
        try:
            return date.fromisoformat(value if isinstance(value, str) else "")
        except ValueError:
            self.wrong(path, "this is not a day", "Write for example until = 2027-06-30.")
            return None

    def add(self, path: KeyPath, text: str, verdict: Verdict) -> Rule | None:
        source, layer = self.source(path), self.layer
        try:
            rule = parse_rule(
                text, verdict=verdict, source=source, layer=layer, is_foreign=self.is_claude
            )
        except BadRule as error:
            problem = f"{quote_start(text)}: {error.message}"
            self.wrong(path, problem, error.hint, inside=error.offset)
            return None
        self.rules.append(rule)
        return rule

    def source(self, path: KeyPath) -> Source:
        if self.layer is Layer.BUILT_IN:
            return Source(self.file)  # a fixed file, and lines take time to find
        line, column = self.document.place(path)
        return Source(self.file, line, column, self.folder)

    def text(self, path: KeyPath, value: object) -> str:
        if isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS and value.isprintable():
            return value
        self.wrong(path, "this is not one line of plain text", "Write it in quotes, on one line.")
        return ""

    def examples(self, path: KeyPath, value: object) -> Iterable[tuple[KeyPath, str]]:
        found = list(self.texts(path, value))
        if len(found) > MAX_EXAMPLES:
            self.wrong(path, f"more than {MAX_EXAMPLES} examples", "Keep the best examples.")
        return found


# Reads a policy file, or reports why it is not read.

_HINTS = {
    Fault.ABSENT: "Name a file that exists.",
    Fault.LONG_NAME: "Name a file that exists.",
    Fault.FORBIDDEN: "Let the user who runs Cellwall read it.",
    Fault.LOOP: "Name the file itself.",
    Fault.UNREADABLE: "Name a regular file.",
    Fault.IRREGULAR: "Name a regular file.",
    Fault.FOLDER: "Name the policy file in it.",
    Fault.TOO_LARGE: "Name the policy file.",
    Fault.STRANGER: "Check what it says, then make it your own with chown.",
    Fault.WRITABLE: "Check what it says, then take that right away with chmod go-w.",
    Fault.NOT_TEXT: "Save the file as UTF-8.",
}


def read_text(path: str, *, shown: str, layer: Layer) -> str:
    """The file's text. Raises `ConfigError` for a file that cannot or must not be trusted."""
    try:
        # The project's group can change its code anyway, and project rules can only tighten.
        return read_settings(path, may_group_write=layer >= Layer.PROJECT)
    except FileRefused as refused:
        place = f"{shown}:{refused.line}" if refused.line else shown
        is_unsafe = refused.fault in UNSAFE
        harm = ", who could loosen the rules" if is_unsafe else ""
        raise ConfigError(
            f"{place}: {refused.fault.value}{harm}",
            hint=_HINTS[refused.fault],
            code="CW-POLICY-UNSAFE" if is_unsafe else "CW-POLICY-FILE",
        ) from None
