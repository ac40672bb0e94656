"""What came back, as a model may see it: cleaned, and marked as data (GRD-3, GRD-4).

The one place where that is done; every interface for agents shows what this makes. What a program
reads stays as it is: a patch with a sentence taken out is no patch any more.

All words that others have chosen stand between marks: streams, values, content, and the names in
our own notes and errors. What stands outside is ours alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellwall.core.network import Page
from cellwall.core.outcomes import SEVERITIES, Finding, RunResult
from cellwall.core.types import Action, FetchUrl, FileEntry, FileOperation, Json, ProcessInfo
from cellwall.guard import mark
from cellwall.guard.report import Report, Treatment
from cellwall.guard.scanning import Scanner

TextFilter = Callable[[str], str]

_MAX_FINDINGS = 100
_MAX_PARTS = 64
_CUT = "\n[{} characters in the middle are left out]\n"
_NO_ROOM = "[cellwall: {} more parts of the result are left out]"
# A name that can stand in a line of ours: short, of letters that only names are made of.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./:@%~+=-]{1,120}")
_IMAGE_FORMATS = frozenset({"png", "jpeg", "svg"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPart:
    """One text of a result, and where it comes from."""

    where: str
    source: str
    """In words of ours."""
    text: str
    name: str = ""
    """Of the file or page, in words of others."""
    is_page: bool = False
    """Whether it is HTML as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedResult:
    """What a model sees of a result, and why perhaps not yet."""

    text: str
    findings: tuple[Finding, ...] = ()
    withheld: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRenderer:
    """Makes texts ready for a model."""

    scanner: Scanner
    redact: TextFilter
    hide: TextFilter = field(default=lambda text: text)
    """Puts tokens in the place of personal data."""

    def show(self, action: Action, result: RunResult) -> RenderedResult:
        """Of an action that ran. For a program only the findings are made."""
        is_read_by_model = action.audience == "model"
        findings: list[Finding] = []
        told: list[str] = []
        withheld, left_out = "", 0
        room = self.scanner.settings.max_shown_characters
        for number, part in enumerate(_result_parts(action, result)):
            if number >= _MAX_PARTS or room <= 0:
                left_out += 1
                continue
            redacted = replace(part, text=self.redact(part.text)) if is_read_by_model else part
            report = self._scan(redacted)
            if part.where != "notes":
                findings += [_with_location(finding, part.where) for finding in report.findings]
            if is_read_by_model:
                withheld = withheld or _approval_question(report)
                told.append(self._mark(redacted, report, room))
                room -= len(told[-1])
        if left_out and is_read_by_model:
            told.append(_NO_ROOM.format(left_out))
        return RenderedResult(
            text="\n".join(told), findings=tuple(findings[:_MAX_FINDINGS]), withheld=withheld
        )

    def tell(self, text: str, source: str) -> str:
        """Words of ours that may hold names of others, as of an error."""
        part = ResultPart(where="notes", source=source, text=self.redact(text))
        report = self._scan(part)
        return self._mark(part, report, self.scanner.settings.max_shown_characters)

    def text(self, text: str, source: str) -> tuple[str, Report]:
        """One text of a tool's answer. It has happened, and its host waits: there is nobody to ask,
        and that is a no."""
        part = ResultPart(where="result", source=source, text=text)
        report = self._scan(part)
        if report.verdict is Treatment.ASK:
            report = replace(report, verdict=Treatment.BLOCK, text="")
        return self._mark(part, report, self.scanner.settings.max_shown_characters), report

    def _scan(self, part: ResultPart) -> Report:
        report = self.scanner.scan(part.text, kind="output")
        if part.is_page:
            # Its tags can stand between the letters of words; then its text alone is shown.
            page = self.scanner.scan(part.text, kind="output", channel="html")
            if page.verdict.rank > max(report.verdict.rank, Treatment.ANNOTATE.rank):
                return page
        return report

    def _mark(self, part: ResultPart, report: Report, room: int) -> str:
        if report.verdict is Treatment.BLOCK:
            return f"[cellwall: {part.source} is withheld: {withholding_reason(report)}]"
        text = self.hide(report.text)
        if len(text) > room:
            half = room // 2
            text = text[:half] + _CUT.format(len(text) - 2 * half) + text[-half:]
        source = f"{part.source} {self._name(part.name)}".rstrip()
        wrapped = mark.wrap(text, source=source, mode=self.scanner.settings.marking)
        if report.is_complete:
            return wrapped
        return f"{wrapped}\n[cellwall: not all of it could be looked at]"

    def _name(self, name: str) -> str:
        """As it is, where nobody can mistake it for a sentence; else nothing."""
        if _PLAIN_NAME.fullmatch(name) is None or self.redact(name) != name:
            return ""
        return "" if self.scanner.scan(name, kind="output").findings else name


def withholding_reason(report: Report) -> str:
    """Why something is withheld."""
    kinds = dict.fromkeys(finding.category for finding in report.findings)
    return f"it holds an attack on whoever reads it ({', '.join(kinds)})"


def _approval_question(report: Report) -> str:
    if report.verdict is not Treatment.ASK:
        return ""
    worst = max(report.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return f"what came back may hold instructions for a model: {worst.message}"


def _with_location(finding: Finding, where: str) -> Finding:
    return finding if finding.where else replace(finding, where=where)


def _result_parts(action: Action, result: RunResult) -> Iterator[ResultPart]:
    """All texts of a result; empty ones say nothing."""
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
    yield ResultPart(where="stdout", source="standard output", text=stdout)
    yield ResultPart(where="stderr", source="standard error", text=stderr)
    if result.text is not None:
        yield ResultPart(where="text", source="the last value", text=result.text)
    elif result.value is not None:
        yield ResultPart(where="value", source="the last value", text=_as_text(result.value))
    for each in result.results:
        yield ResultPart(where="results", source="a result", text=_without_images(each))
    if result.code_error is not None:
        told = _error_text(result.code_error)
        if told.strip() not in stderr:  # mostly it is there
            yield ResultPart(where="code_error", source="the error of the code", text=told)
    yield from _payload_texts(action, payload)
    # Of the border and the way out: they name files and hosts that code has chosen.
    notes = "\n".join(finding.message for finding in result.findings)
    yield ResultPart(where="notes", source="notes about the run", text=notes)


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
    """A picture is shown as one, or not at all; its bytes are no text."""
    if isinstance(value, Mapping):
        kept = {key: each for key, each in value.items() if key not in _IMAGE_FORMATS}
        return _as_text(kept) if kept else ""
    return _as_text(value)


_MAX_DEPTH = 32
_MAX_TEXTS = 5000
_WITHHELD = "[cellwall: withheld: {}]"
_TOO_MUCH = _WITHHELD.format("it has more texts, or deeper ones, than are looked at")
# Names, paths, numbers, types: what hosts read themselves, and nobody takes for a sentence.
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%~+=,#-]{0,160}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(slots=True)
class ToolResultCleaner:
    """Goes through one answer once."""

    source: str
    renderer: ModelRenderer
    findings: list[Finding] = field(default_factory=list)
    _texts: int = 0

    def clean(self, value: Json) -> Json:
        """The same, with every text cleaned and marked."""
        told = self._value(value, "result", depth=0)
        del self.findings[_MAX_FINDINGS:]
        return told

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
        """Names are read by models, too."""
        if _PLAIN.fullmatch(key) and len(key) < _SHORT:
            return key
        self._texts += 1
        _, report = self.renderer.text(key, self.source)
        self.findings += [replace(finding, where="a key") for finding in report.findings]
        if report.verdict.rank < Treatment.NEUTRALISE.rank:
            return key
        return f"{_WITHHELD.format('a name')} {self._texts}"

    def _text(self, text: str, name: str) -> str:
        if not text:
            return text
        self._texts += 1
        marked, report = self.renderer.text(text, self.source)
        self.findings += [replace(finding, where=name[:_SHORT]) for finding in report.findings]
        if report.verdict is Treatment.BLOCK:
            return _WITHHELD.format(withholding_reason(report))
        is_its_own = report.verdict.rank < Treatment.NEUTRALISE.rank and _PLAIN.fullmatch(text)
        return text if is_its_own else marked


_SHORT = 40


def _is_image(value: Mapping[str, Json]) -> bool:
    """Its bytes are no text; a host that got them marked could not show them."""
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
