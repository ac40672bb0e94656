"""Renders results for a model: neutralised, and marked as data (GRD-3, GRD-4).

The only place that does so; every interface for agents shows this rendering. A result that a
program reads stays unchanged: a patch without one of its sentences is no longer a patch.

All foreign text is between marks: streams, values, content, and the names in notes and errors of
Cellwall. Only text of Cellwall itself is outside the marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellwall.core.files import FileEntry, FileOperation
from cellwall.core.network import Page
from cellwall.core.outcomes import SEVERITIES, Finding, RunResult
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, FetchUrl, Json, ProcessInfo
from cellwall.guard import mark
from cellwall.guard.report import Report, TextTreatment
from cellwall.guard.scanning import Scanner

TextFilter = Callable[[str], str]

_MAX_FINDINGS = 100
_MAX_PARTS = 64
_CUT = "\n[{} characters in the middle are left out]\n"
_NO_ROOM = "[cellwall: {} more parts of the result are left out]"
# A name that is safe in a line of Cellwall: short, and of characters that form no sentence.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./:@%~+=-]{1,120}")
_IMAGE_FORMATS = frozenset({"png", "jpeg", "svg"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPart:
    """One text of a result, and its origin."""

    where: str
    source: str
    """Description by Cellwall."""
    text: str
    name: str = ""
    """Name of the file or page; foreign text."""
    is_page: bool = False
    """Whether the text is raw HTML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedResult:
    """The text for a model, and the question to a person if the text waits for an approval."""

    text: str
    findings: tuple[Finding, ...] = ()
    withheld: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRenderer:
    """Scans, redacts and marks texts for a model."""

    scanner: Scanner
    redact: TextFilter
    hide: TextFilter = field(default=lambda text: text)
    """Replaces personal data by tokens."""

    def show(self, action: Action, result: RunResult) -> RenderedResult:
        """Render the result of an action. For a program only the findings are produced."""
        is_read_by_model = action.audience == "model"
        findings: list[Finding] = []
        shown: list[str] = []
        withheld, left_out = "", 0
        left_chars = self.scanner.settings.max_shown_characters
        for number, part in enumerate(_result_parts(action, result)):
            if number >= _MAX_PARTS or left_chars <= 0:
                left_out += 1
                continue
            text = self.redact(part.text) if is_read_by_model else part.text
            redacted = part if text == part.text else replace(part, text=text)
            report = self._scan(redacted)
            if part.where != "notes":
                findings += [_with_location(finding, part.where) for finding in report.findings]
            if is_read_by_model:
                withheld = withheld or _approval_question(report)
                shown.append(self._mark(redacted, report, left_chars))
                left_chars -= len(shown[-1])
        if left_out and is_read_by_model:
            shown.append(_NO_ROOM.format(left_out))
        return RenderedResult(
            text="\n".join(shown), findings=tuple(findings[:_MAX_FINDINGS]), withheld=withheld
        )

    def tell(self, text: str, source: str) -> str:
        """A message of Cellwall that may contain foreign names, such as an error."""
        part = ResultPart(where="notes", source=source, text=self.redact(text))
        report = self._scan(part)
        return self._mark(part, report, self.scanner.settings.max_shown_characters)

    def text(self, text: str, source: str) -> tuple[str, Report]:
        """One text of a tool result. The tool has run and its host waits, so there is no time for
        an approval: ASK becomes BLOCK."""
        part = ResultPart(where="result", source=source, text=text)
        report = self._scan(part)
        if report.verdict is TextTreatment.ASK:
            report = replace(report, verdict=TextTreatment.BLOCK, text="")
        return self._mark(part, report, self.scanner.settings.max_shown_characters), report

    def _scan(self, part: ResultPart) -> Report:
        report = self.scanner.scan(part.text, kind="output")
        if part.is_page:
            # Tags can split words. If the extracted text is worse, only that text is shown.
            page = self.scanner.scan(part.text, kind="output", channel="html")
            if page.verdict.rank > max(report.verdict.rank, TextTreatment.ANNOTATE.rank):
                return page
        return report

    def _mark(self, part: ResultPart, report: Report, left_chars: int) -> str:
        if report.verdict is TextTreatment.BLOCK:
            return f"[cellwall: {part.source} is withheld: {withholding_reason(report)}]"
        text = self.hide(report.text)
        if len(text) > left_chars:
            half = left_chars // 2
            text = text[:half] + _CUT.format(len(text) - 2 * half) + text[-half:]
        source = f"{part.source} {self._name(part.name)}".rstrip()
        wrapped = mark.wrap(text, source=source, mode=self.scanner.settings.marking)
        if report.is_complete:
            return wrapped
        return f"{wrapped}\n[cellwall: not all of it could be looked at]"

    def _name(self, name: str) -> str:
        """The name if it cannot be read as a sentence and holds no secret; else nothing."""
        if _PLAIN_NAME.fullmatch(name) is None or self.redact(name) != name:
            return ""
        return "" if self.scanner.scan(name, kind="output").findings else name


def withholding_reason(report: Report) -> str:
    """The reason that a withheld text is replaced by."""
    kinds = dict.fromkeys(finding.category for finding in report.findings)
    return f"it holds an attack on whoever reads it ({', '.join(kinds)})"


def _approval_question(report: Report) -> str:
    if report.verdict is not TextTreatment.ASK:
        return ""
    worst = max(report.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return f"what came back may hold instructions for a model: {worst.message}"


def _with_location(finding: Finding, where: str) -> Finding:
    return finding if finding.where else replace(finding, where=where)


def _result_parts(action: Action, result: RunResult) -> Iterator[ResultPart]:
    """All texts of a result that are not empty."""
    yield from (part for part in _texts(action, result) if part.text)


def _texts(action: Action, result: RunResult) -> Iterator[ResultPart]:
    payload = result.payload
    if isinstance(payload, Page):
        text = payload.text if result.text is None else result.text
        is_raw = isinstance(action.operation, FetchUrl) and action.operation.form == "raw"
        is_html = is_raw and "html" in payload.content_type
        yield ResultPart(
            where="page", source="the page", text=text, name=payload.url, is_page=is_html
        )
        return
    stderr = result.stderr.decode("utf-8", "replace")
    stdout = result.stdout.decode("utf-8", "replace")
    if stdout:
        yield ResultPart(where="stdout", source="standard output", text=stdout)
    if stderr:
        yield ResultPart(where="stderr", source="standard error", text=stderr)
    if result.text is not None:
        yield ResultPart(where="text", source=_text_source(action), text=result.text)
    elif result.value is not None:
        yield ResultPart(where="value", source="the last value", text=_as_text(result.value))
    for each in result.results:
        yield ResultPart(where="results", source="a result", text=_without_images(each))
    if result.code_error is not None:
        error_text = _error_text(result.code_error)
        if error_text.strip() not in stderr:  # usually stderr has the traceback
            yield ResultPart(where="code_error", source="the error of the code", text=error_text)
    yield from _payload_texts(action, payload)
    # Findings of sandbox and egress name files and hosts that the code has chosen.
    if result.findings:
        notes = "\n".join(finding.message for finding in result.findings)
        yield ResultPart(where="notes", source="notes about the run", text=notes)


def _text_source(action: Action) -> str:
    if isinstance(action.operation, CallServerTool):
        return f"the MCP server {action.operation.server}"
    return "the last value"


def _payload_texts(action: Action, payload: object) -> Iterator[ResultPart]:
    if isinstance(payload, str) or not isinstance(payload, bytes | Sequence):
        return
    if not isinstance(action.operation, FileOperation):
        commands = [each.command for each in payload if isinstance(each, ProcessInfo)]
        lines = "\n".join(" ".join(command) for command in commands)
        yield ResultPart(where="processes", source="the programs", text=lines)
    elif isinstance(payload, bytes):
        name = action.operation.path
        yield ResultPart(where="file", source="the file", text=_file_text(payload), name=name)
    else:
        lines = "\n".join(_entries(payload))
        yield ResultPart(
            where="names", source="the names in", text=lines, name=action.operation.path
        )


def _entries(payload: Sequence[object]) -> Iterator[str]:
    for each in payload:
        if isinstance(each, FileEntry):
            sign = "/" if each.kind == "dir" else ""
            yield f"{each.path}{sign}\t{each.size_bytes}\t{each.kind}"


def _file_text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"[{len(data)} bytes that are no text]"


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _error_text(value: Json) -> str:
    if isinstance(value, Mapping):
        trace = value.get("traceback")
        if isinstance(trace, str) and trace:
            return trace
    return _as_text(value)


def _without_images(value: Json) -> str:
    """Image formats are left out: their bytes are not text."""
    if isinstance(value, Mapping):
        kept = {key: each for key, each in value.items() if key not in _IMAGE_FORMATS}
        return _as_text(kept) if kept else ""
    return _as_text(value)


_MAX_DEPTH = 32
_MAX_TEXTS = 5000
_WITHHELD = "[cellwall: withheld: {}]"
_TOO_MUCH = _WITHHELD.format("it has more texts, or deeper ones, than are looked at")
# Names, paths, numbers, types: values that hosts parse, and that form no sentence.
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%~+=,#-]{0,160}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(slots=True)
class ToolResultCleaner:
    """Cleans all texts of one tool result (GRD-4), whatever its structure. For one use."""

    source: str
    renderer: ModelRenderer
    findings: list[Finding] = field(default_factory=list)
    _texts: int = 0

    def clean(self, value: Json) -> Json:
        """The same structure, with every text neutralised and marked."""
        rendered = self._value(value, "result", depth=0)
        del self.findings[_MAX_FINDINGS:]
        return rendered

    def _value(self, value: Json, name: str, *, depth: int) -> Json:
        if depth > _MAX_DEPTH or self._texts > _MAX_TEXTS:
            return _TOO_MUCH
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, Mapping):
            if _is_image(value):
                return value
            return {
                self._key(str(key)): self._value(each, str(key), depth=depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self._value(each, name, depth=depth + 1) for each in value]
        return value

    def _key(self, key: str) -> str:
        """Models read keys as well as values."""
        if _PLAIN.fullmatch(key) and len(key) < _SHORT:
            return key
        self._texts += 1
        _, report = self.renderer.text(key, self.source)
        self.findings += [replace(finding, where="a key") for finding in report.findings]
        if report.verdict.rank < TextTreatment.NEUTRALISE.rank:
            return key
        return f"{_WITHHELD.format('a name')} {self._texts}"

    def _text(self, text: str, name: str) -> str:
        if not text:
            return text
        self._texts += 1
        marked, report = self.renderer.text(text, self.source)
        self.findings += [replace(finding, where=name[:_SHORT]) for finding in report.findings]
        if report.verdict is TextTreatment.BLOCK:
            return _WITHHELD.format(withholding_reason(report))
        is_its_own = report.verdict.rank < TextTreatment.NEUTRALISE.rank and _PLAIN.fullmatch(text)
        return text if is_its_own else marked


_SHORT = 40


def _is_image(value: Mapping[str, Json]) -> bool:
    """Base64 image data is not text, and a host could not show it with marks inside."""
    kind = value.get("type", value.get("mimeType", value.get("media_type", "")))
    data = value.get("data")
    others = [each for key, each in value.items() if key != "data"]
    return (
        isinstance(kind, str)
        and kind.startswith(("image", "base64"))
        and isinstance(data, str)
        and _BASE64.fullmatch(data) is not None
        and all(isinstance(each, str) and _PLAIN.fullmatch(each) for each in others)
    )
