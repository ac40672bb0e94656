"""Policy files become rules, or one error that tells every mistake with its place and hint.

Ours, TOML or JSON: `[permissions]` with the arrays `allow`, `ask`, `deny`, and tables `[[rule]]`.
An unknown key is a mistake, since it could be a denial that somebody relies on. Claude Code's
`settings.json` is read as it is: only the three arrays count, and nothing else in it loosens
anything, `defaultMode` included.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from cellwall.config.locate import KeyPath
from cellwall.core.errors import ConfigError
from cellwall.core.settings_file import UNSAFE, Fault, FileRefused, read_settings
from cellwall.core.verdict import Verdict
from cellwall.policy.paths import normalise
from cellwall.policy.positions import Document, PositionError, read_json, read_toml
from cellwall.policy.protected_rules import protected_rules
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import OTHERWISE, BadRule, Layer, Rule, Source

RULES_MOST = 10_000
EXAMPLES_MOST = 64
MAX_TEXT_CHARACTERS = 4096
MISTAKES_MOST = 100

VERDICTS = {"deny": Verdict.DENY, "ask": Verdict.ASK, "allow": Verdict.ALLOW}
_TOP_KEYS = ("permissions", "rule")
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
    """Its name as people are told it."""
    layer: Layer
    rules: tuple[Rule, ...]
    is_claude: bool = False
    sha256: str = ""
    """Of the very text that the rules were read from."""


def load_policy_file(
    path: str, layer: Layer, *, home: str, shown: str | None = None, folder: str | None = None
) -> PolicyFile:
    """Reads one file. `folder` is what `/path` in it is relative to, where that is not its own.

    `shown` is all that rules and errors tell of where it lies (ERR-1).
    """
    named = _shown_path(path, home) if shown is None else shown
    text = read_text(path, shown=named, layer=layer)
    base = _folder_of(path, layer) if folder is None else folder
    return parse_policy(text, file=named, name=os.path.basename(path), layer=layer, folder=base)


def parse_policy(text: str, *, file: str, name: str, layer: Layer, folder: str) -> PolicyFile:
    """The rules in a text; what `name` ends with says how it is written. Pure."""
    is_json = name.endswith(".json")
    try:
        document = read_json(text) if is_json else read_toml(text)
    except PositionError as error:
        line, column = error.place
        raise ConfigError(
            f"{file}:{line}:{column}: {error.problem}", hint=error.hint, code="CW-POLICY"
        ) from None
    is_claude = is_json and _is_claude(document.value, name)
    reader = _PolicyFileParser(document, file, layer, folder, is_claude=is_claude)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return PolicyFile(file, layer, reader.read(), is_claude, digest)


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """The denials that no policy can take back, each with its reason (POL-4)."""
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
    # Claude Code takes the paths in a project's settings from the project's own folder.
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
class _PolicyFileParser:
    """Collects the rules and the mistakes of one document."""

    document: Document
    file: str
    layer: Layer
    folder: str
    is_claude: bool = field(kw_only=True)
    rules: list[Rule] = field(default_factory=list)
    mistakes: list[tuple[int, int, str]] = field(default_factory=list)

    def wrong(self, path: KeyPath, problem: str, hint: str, *, inside: int = 0) -> None:
        line, column = self.document.place(path, inside=inside)
        self.mistakes.append((line, column, f"{_path_text(path)}: {problem}. {hint}".lstrip(": ")))

    def report(self) -> None:
        if len(self.rules) > RULES_MOST:
            self.wrong((), f"more than {RULES_MOST} rules", "Write fewer and wider rules.")
        if not self.mistakes:
            return
        ordered = sorted(self.mistakes)
        told = [f"{self.file}:{line}:{column}: {text}" for line, column, text in ordered]
        if len(told) > MISTAKES_MOST:
            told[MISTAKES_MOST:] = [f"{self.file}: and {len(told) - MISTAKES_MOST} more"]
        hint = "Nothing was run. Correct the file and try again."
        raise ConfigError("\n".join(told), hint=hint, code="CW-POLICY")

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
        self.report()
        return tuple(self.rules)

    def read_otherwise(self, found: object) -> None:
        """What becomes of a call that no rule of the file matches: asked about, or denied."""
        path: KeyPath = ("permissions", OTHERWISE)
        if found not in {"ask", "deny"}:
            self.wrong(path, "this is neither ask nor deny", 'Write otherwise = "ask".')
        elif found == "ask":
            # Without the file's path: a reason is shown to models as well.
            reason = "no rule is about this"
            self.rules.append(
                Rule(Verdict.ASK, OTHERWISE, None, self.source(path), self.layer, reason)
            )

    def read_rules(self, found: object) -> None:
        if not isinstance(found, list):
            self.wrong(("rule",), "this is not a list of tables", "Write [[rule]] above each.")
            return
        for number, each in enumerate(found[: RULES_MOST + 1]):
            path: KeyPath = ("rule", number)
            table = self.table(path, each)
            self.refuse_unknown(path, table, _RULE_KEYS)
            if isinstance(each, dict):
                self.read_rule(path, table)

    def read_rule(self, path: KeyPath, table: Mapping[str, object]) -> None:
        word, text = table.get("verdict"), table.get("rule")
        verdict = VERDICTS.get(word) if isinstance(word, str) else None
        if verdict is None:
            hint = 'Write verdict = "deny", "ask" or "allow".'
            self.wrong((*path, "verdict"), "the verdict is missing or unknown", hint)
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
            place: KeyPath = (*path, "rule")
            self.add(
                *(place, text, verdict, reason, match, not_match, answers, unless),
                stops=stops is True,
            )

    def add(
        self,
        path: KeyPath,
        text: str,
        verdict: Verdict,
        reason: str = "",
        match: tuple[str, ...] = (),
        not_match: tuple[str, ...] = (),
        answers: str = "",
        unless: tuple[str, ...] = (),
        *,
        stops: bool = False,
    ) -> None:
        try:
            self.rules.append(
                parse_rule(
                    text,
                    verdict=verdict,
                    source=self.source(path),
                    layer=self.layer,
                    reason=reason,
                    match=match,
                    not_match=not_match,
                    answers=answers,
                    unless=unless,
                    stops=stops,
                    is_foreign=self.is_claude,
                )
            )
        except BadRule as error:
            problem = f"{_quoted(text)}: {error.message}"
            self.wrong(path, problem, error.hint, inside=error.offset)

    def source(self, path: KeyPath) -> Source:
        if self.layer is Layer.BUILT_IN:
            return Source(self.file)  # nobody can change it, and lines take time to find
        line, column = self.document.place(path)
        return Source(self.file, line, column, self.folder)

    def table(self, path: KeyPath, value: object) -> Mapping[str, object]:
        if isinstance(value, dict):
            return value
        self.wrong(path, "this is not a table", "Write keys and their values here.")
        return {}

    def text(self, path: KeyPath, value: object) -> str:
        if isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS and value.isprintable():
            return value
        self.wrong(path, "this is not one line of plain text", "Write it in quotes, on one line.")
        return ""

    def texts(self, path: KeyPath, value: object) -> Iterable[tuple[KeyPath, str]]:
        if not isinstance(value, list):
            self.wrong(path, "this is not a list", 'Write for example ["Bash(git status)"].')
            return
        for number, each in enumerate(value[: RULES_MOST + 1]):
            if isinstance(each, str):
                yield (*path, number), each
            else:
                self.wrong((*path, number), "this is not a text", "Write each rule in quotes.")

    def examples(self, path: KeyPath, value: object) -> Iterable[tuple[KeyPath, str]]:
        found = list(self.texts(path, value))
        if len(found) > EXAMPLES_MOST:
            self.wrong(path, f"more than {EXAMPLES_MOST} examples", "Keep the telling ones.")
        return found

    def refuse_unknown(
        self, path: KeyPath, table: Mapping[str, object], known: Iterable[str]
    ) -> None:
        names = tuple(known)
        for key in table:
            if key in names:
                continue
            close = difflib.get_close_matches(key[:80], names, n=1)
            told = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(names)}."
            self.wrong((*path, key), "unknown key", told)


# A terminal obeys control characters, so no text of the file is repeated raw or at full length.


def _quoted(text: str) -> str:
    return json.dumps(text[:60]) + ("…" if len(text) > 60 else "")


def _path_text(path: KeyPath) -> str:
    told = ""
    for part in path:
        if isinstance(part, int):
            told += f"[{part}]"
        else:
            bare = part.isascii() and part.replace("_", "a").isalnum() and len(part) <= 60
            told += ("." if told else "") + (part if bare else _quoted(part))
    return told


# Reads a policy file, and tells why one is not read.

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
        # Those of a project's group can change its code, and the project's rules can only tighten.
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
