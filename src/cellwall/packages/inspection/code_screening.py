"""Collects the code of one artifact and screens it within a budget (PKG-1).

The findings name file and line, never a text of the file: a text may be a credential, and it is
written by a stranger for the model that reads the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from cellwall.core.limits import MIB
from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.behaviours import judge_code
from cellwall.packages.inspection.findings import NOT_INSPECTED, ArtifactFinding
from cellwall.packages.inspection.javascript_code import (
    MAX_SOURCE_BYTES as MAX_JAVASCRIPT_BYTES,
)
from cellwall.packages.inspection.javascript_code import has_words, observe_javascript
from cellwall.packages.inspection.python_code import MAX_SOURCE_BYTES as MAX_PYTHON_BYTES
from cellwall.packages.inspection.python_code import (
    Depth,
    called_names,
    is_encoded,
    needed_depth,
    observe_python,
)
from cellwall.packages.inspection.signs import hidden_in
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, checkpoint
from cellwall.parsing.credentials.rule_set import on_wire, spans_in

PYTHON = (".py", ".pyw", ".pth")
JAVASCRIPT = (".js", ".cjs", ".mjs")
# Files in which people leave a credential by mistake.
_TEXTS = (
    *PYTHON,
    *JAVASCRIPT,
    ".ts",
    ".json",
    ".env",
    ".cfg",
    ".ini",
    ".toml",
    ".yml",
    ".yaml",
    ".pem",
    ".key",
    ".sh",
)
_CREDENTIAL_FILES = frozenset(
    {".npmrc", ".pypirc", ".netrc", "id_rsa", "id_ed25519", "credentials"}
)
MAX_KEPT_BYTES = 64 * MIB
_BASE_S = 4.0
_PER_BYTE_S = 2e-6
_MAX_S = 30.0
_MAX_FINDINGS = 20
_MAX_CALLED = 2000


class Language(Enum):
    """The languages that are screened."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"


def _language_of(path: str) -> Language | None:
    if path.endswith(PYTHON):
        return Language.PYTHON
    return Language.JAVASCRIPT if path.endswith(JAVASCRIPT) else None


@dataclass(frozen=True, slots=True)
class _ScreenedSource:
    path: str
    data: bytes
    language: Language
    depth: Depth
    is_start_up: bool
    is_cut: bool


class CodeScreening:
    """Files are added in the order of the archive, and screened together at its end.

    `runs_javascript`: of npm; in a package of Python such files are for browsers.
    """

    def __init__(self, *, runs_javascript: bool = False) -> None:
        self._runs_javascript = runs_javascript
        self._sources: list[_ScreenedSource] = []
        self._called: set[str] = set()
        self._kept_bytes = 0
        self._budget = ScanBudget(base_s=_BASE_S, per_byte_s=_PER_BYTE_S, max_s=_MAX_S)
        self._findings: list[ArtifactFinding] = []
        self._is_unfinished = False

    def add(
        self,
        path: str,
        data: bytes,
        *,
        size: int | None = None,
        language: Language | None = None,
        is_start_up: bool = False,
    ) -> None:
        """A file, by its suffix or in a given language. Sources without any word of a rule are not
        kept.

        `size`: of the whole file, if `data` is its start. `is_start_up`: runs at installation or at
        each start of Python.
        """
        language = language or _language_of(path)
        is_text = path.endswith(_TEXTS) or path.rpartition("/")[2] in _CREDENTIAL_FILES
        if not is_text and language is None:
            return
        self._budget.grant(len(data))
        try:
            with self._budget.running():
                is_cut = size is not None and size > len(data)
                self._add(path, data, language, is_cut=is_cut, is_start_up=is_start_up)
        except ScanUnfinished:
            self._is_unfinished = True

    def _add(
        self,
        path: str,
        data: bytes,
        language: Language | None,
        *,
        is_cut: bool,
        is_start_up: bool,
    ) -> None:
        checkpoint()
        self._find_credentials(path, data)
        depth = Depth.NOTHING
        if language is Language.PYTHON:
            if len(self._called) < _MAX_CALLED:
                self._called |= called_names(data)
            depth = needed_depth(data)
            is_hiding = any(hidden_in(data)) or is_encoded(data)
            if depth is Depth.NOTHING and not is_hiding and not is_cut:
                return
        if language is None:
            return
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._is_unfinished = True
        else:
            self._sources.append(_ScreenedSource(path, data, language, depth, is_start_up, is_cut))

    def _find_credentials(self, path: str, data: bytes) -> None:
        if spans := spans_in(on_wire(), data):
            line = data.count(b"\n", 0, spans[0].start) + 1
            text = f"{path} holds a credential (rule {spans[0].rule}, line {line})"
            self._findings.append(ArtifactFinding("credential", Verdict.ALLOW, text))

    def findings(self, installing: frozenset[str] = frozenset()) -> list[ArtifactFinding]:
        """The strictest findings first. `installing`: files that an installation runs."""
        try:
            with self._budget.running():
                for source in self._sources:
                    checkpoint()
                    self._findings += self._screen(source, installing)
        except ScanUnfinished:
            self._is_unfinished = True
        if self._is_unfinished:
            text = "the code could not be inspected within the limits of time and size"
            self._findings.insert(0, ArtifactFinding(NOT_INSPECTED, Verdict.ASK, text))
        self._findings.sort(key=lambda each: each.verdict, reverse=True)
        return self._findings[:_MAX_FINDINGS]

    def _screen(
        self, source: _ScreenedSource, installing: frozenset[str]
    ) -> Iterator[ArtifactFinding]:
        path, data = source.path, source.data
        is_install = source.is_start_up or path in installing
        if source.language is Language.PYTHON:
            seen = observe_python(data, source.depth, is_install=is_install, called=self._called)
            is_read = len(data) <= MAX_PYTHON_BYTES and not source.is_cut
        else:
            seen = observe_javascript(data, is_install=is_install)
            is_read = len(data) <= MAX_JAVASCRIPT_BYTES and not source.is_cut
            if not is_read and not is_install:
                is_run = self._runs_javascript and (source.is_cut or has_words(data))
                is_read = not is_run
        if not is_read:
            text = f"{path} is too long to be inspected"
            yield ArtifactFinding(NOT_INSPECTED, Verdict.ASK, text)
        yield from judge_code(path, seen)
