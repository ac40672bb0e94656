"""Tables of calls with their expected verdicts. Pure.

    policy = ["policy.toml"]          judged by these; else by the rules in force
    cwd = ".."                        the working directory; both are relative to the table
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

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cellwall.config.settings_file import KeyPath
from cellwall.core.errors import BadInput
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall, from_json, parse_call
from cellwall.policy.positions import MAX_VALUES, DocumentParser, read_document

_TOP = ("policy", "cwd", *(verdict.word for verdict in Verdict), "case")
_CASE = ("call", "tool", "input", "verdict", "note")


@dataclass(frozen=True, slots=True)
class CallCase:
    """One call and its expected verdict."""

    call: ToolCall
    text: str
    """The call as written in the table."""
    verdict: Verdict
    line: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class CallTable:
    """The cases of one file."""

    cases: tuple[CallCase, ...]
    policies: tuple[str, ...]
    """Absolute paths."""
    cwd: str


def read_table(text: str, *, file: str, folder: str, cwd: str, home: str) -> CallTable:
    """Raises `ConfigError` with every mistake; `cwd` is the default of the table."""
    document = read_document(text, file=file, code="CW-POLICY-TABLE")
    return _TableParser(document, file, folder, cwd, home).read()


@dataclass(slots=True)
class _TableParser(DocumentParser):
    folder: str
    cwd: str
    home: str
    cases: list[CallCase] = field(default_factory=list)

    def read(self) -> CallTable:
        top = self.document.value
        assert isinstance(top, dict)  # noqa: S101  # by TOML's grammar
        self.refuse_unknown((), top, _TOP)
        cwd = top.get("cwd", self.cwd)
        if isinstance(cwd, str):
            self.cwd = os.path.normpath(os.path.join(self.folder, cwd))
        else:
            self.wrong(("cwd",), "this is not a string", "Write the path of a folder in quotes.")
        named = self.texts(("policy",), top.get("policy", []))
        policies = [os.path.normpath(os.path.join(self.folder, each)) for _, each in named]
        for verdict in Verdict:
            for path, call in self.texts((verdict.word,), top.get(verdict.word, [])):
                self.add(path, call, verdict)
        for number, case in enumerate(self.array(("case",), top.get("case", []))):
            if isinstance(case, dict):
                self.read_case(("case", number), case)
            else:
                self.wrong(("case", number), "this is not a table", "Write [[case]] above each.")
        if not self.cases and not self.mistakes:
            hint = 'Write for example allow = ["Bash(git status)"].'
            self.wrong((), "the table holds no call", hint)
        if len(self.cases) > MAX_VALUES:
            self.wrong((), f"more than {MAX_VALUES} calls", "Write several tables.")
        hint = "Nothing was tried. Correct the table and try again."
        self.report(code="CW-POLICY-TABLE", hint=hint)
        return CallTable(tuple(self.cases), tuple(policies), self.cwd)

    def read_case(self, path: KeyPath, case: Mapping[str, object]) -> None:
        self.refuse_unknown(path, case, _CASE)
        verdict, note = self.verdict(path, case), case.get("note", "")
        if not isinstance(note, str):
            self.wrong((*path, "note"), "this is not a string", "Write it in quotes.")
        if ("call" in case) == ("tool" in case) or ("call" in case and "input" in case):
            hint = 'Write call = "Bash(ls)", or tool = "Bash" and input = { command = "ls" }.'
            self.wrong(path, "the case needs exactly one call", hint)
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
        self.cases.append(CallCase(call, text, verdict, line, note))
