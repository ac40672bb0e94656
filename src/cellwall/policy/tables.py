"""Tables of calls with their expected verdicts. Pure.

    policy = ["policy.toml"]          judged by these; else by the rules that count here
    cwd = ".."                        where the calls would run; both are relative to the table
    allow = ["Bash(git status)"]
    ask = ["Bash(git push)"]
    deny = ["Read(.env)"]

    [[case]]
    call = "Bash(rm -rf build)"       or tool = "Bash" and input = { command = "rm -rf build" }
    verdict = "deny"
    note = "the build folder is made by hand here"

An unknown key is a mistake: a test that is not run looks like one that passes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cellwall.config.locate import KeyPath
from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.showing import one_line
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall, from_json, parse_call
from cellwall.policy.positions import Document, PositionError, read_toml

CASES_MOST = 10_000
_MISTAKES_MOST = 50
_VERDICTS = {verdict.word: verdict for verdict in Verdict}
_TOP = ("policy", "cwd", *_VERDICTS, "case")
_CASE = ("call", "tool", "input", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Case:
    """One call and its expected verdict."""

    call: ToolCall
    text: str
    """The call as it stands in the table."""
    verdict: Verdict
    line: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The cases of one file."""

    cases: tuple[Case, ...]
    policies: tuple[str, ...]
    """Absolute paths."""
    cwd: str


def read_table(text: str, *, file: str, folder: str, cwd: str, home: str) -> Table:
    """Raises `ConfigError` with every mistake and its line; `cwd` counts if it names none."""
    try:
        document = read_toml(text)
    except PositionError as error:
        line, column = error.place
        raise ConfigError(
            f"{file}:{line}:{column}: {error.problem}", hint=error.hint, code="CW-POLICY-TABLE"
        ) from None
    reader = _TableParser(document, file, folder, cwd, home)
    table = reader.read()
    reader.report()
    return table


@dataclass(slots=True)
class _TableParser:
    document: Document
    file: str
    folder: str
    cwd: str
    home: str
    cases: list[Case] = field(default_factory=list)
    mistakes: list[tuple[int, str]] = field(default_factory=list)

    def read(self) -> Table:
        top = self.document.value
        assert isinstance(top, dict)  # noqa: S101  # what TOML is
        self.refuse_unknown((), top, _TOP)
        cwd = top.get("cwd", self.cwd)
        if isinstance(cwd, str):
            self.cwd = os.path.normpath(os.path.join(self.folder, cwd))
        else:
            self.wrong(("cwd",), "this is not a text", "Write the path of a folder in quotes.")
        named = self.texts(("policy",), top.get("policy", []))
        policies = [os.path.normpath(os.path.join(self.folder, each)) for _, each in named]
        for word, verdict in _VERDICTS.items():
            for path, call in self.texts((word,), top.get(word, [])):
                self.add(path, call, verdict)
        for number, case in enumerate(self.array(("case",), top.get("case", []))):
            if isinstance(case, dict):
                self.read_case(("case", number), case)
            else:
                self.wrong(("case", number), "this is not a table", "Write [[case]] above each.")
        if not self.cases and not self.mistakes:
            hint = 'Write for example allow = ["Bash(git status)"].'
            self.wrong((), "the table expects nothing", hint)
        return Table(tuple(self.cases), tuple(policies), self.cwd)

    def read_case(self, path: KeyPath, case: Mapping[str, object]) -> None:
        self.refuse_unknown(path, case, _CASE)
        word = case.get("verdict")
        verdict = _VERDICTS.get(word) if isinstance(word, str) else None
        note = case.get("note", "")
        if verdict is None:
            hint = 'Write verdict = "allow", "ask" or "deny".'
            self.wrong((*path, "verdict"), "the verdict is missing or unknown", hint)
        if not isinstance(note, str):
            self.wrong((*path, "note"), "this is not a text", "Write it in quotes.")
        if ("call" in case) == ("tool" in case) or ("call" in case and "input" in case):
            hint = 'Write call = "Bash(ls)", or tool = "Bash" and input = { command = "ls" }.'
            self.wrong(path, "it names no call, or two", hint)
        elif verdict is not None:
            call = case["call"] if "call" in case else {k: case.get(k) for k in ("tool", "input")}
            self.add((*path, "call" if "call" in case else "tool"), call, verdict, str(note))

    def add(self, path: KeyPath, found: object, verdict: Verdict, note: str = "") -> None:
        try:
            if isinstance(found, str):
                call, text = parse_call(found, cwd=self.cwd, home=self.home), found
            else:
                call = from_json(found, cwd=self.cwd, home=self.home)
                text = f"{call.tool}({', '.join(map(str, call.input.values()))})"
        except BadInput as error:
            self.wrong(path, error.message, error.hint)
            return
        line, _ = self.document.place(path)
        self.cases.append(Case(call, text, verdict, line, note))

    def texts(self, path: KeyPath, value: object) -> Iterator[tuple[KeyPath, str]]:
        for number, each in enumerate(self.array(path, value)):
            if isinstance(each, str):
                yield (*path, number), each
            else:
                self.wrong((*path, number), "this is not a text", "Write each one in quotes.")

    def array(self, path: KeyPath, value: object) -> list[object]:
        if isinstance(value, list):
            return value
        self.wrong(path, "this is not a list", 'Write for example ["Bash(git status)"].')
        return []

    def refuse_unknown(
        self, path: KeyPath, table: Mapping[str, object], known: Iterable[str]
    ) -> None:
        names = tuple(known)
        for key in table:
            if key not in names:
                close = difflib.get_close_matches(key[:80], names, n=1)
                told = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(names)}."
                self.wrong((*path, key), f"unknown key {one_line(key)!r}", told)

    def wrong(self, path: KeyPath, problem: str, hint: str) -> None:
        line, _ = self.document.place(path)
        self.mistakes.append((line, f"{problem}. {hint}"))

    def report(self) -> None:
        if len(self.cases) > CASES_MOST:
            self.wrong((), f"more than {CASES_MOST} calls", "Write several tables.")
        if not self.mistakes:
            return
        told = [f"{self.file}:{line}: {text}" for line, text in sorted(self.mistakes)]
        if len(told) > _MISTAKES_MOST:
            told[_MISTAKES_MOST:] = [f"{self.file}: and {len(told) - _MISTAKES_MOST} more"]
        hint = "Nothing was tried. Correct the table and try again."
        raise ConfigError("\n".join(told), hint=hint, code="CW-POLICY-TABLE")
