"""The guard as the runtime uses it: screens input, cleans output (GRD-1..9).

The guard is a strong signal, never the only control: policy, sandbox and egress stand behind it
and hold where it errs.
"""

# ruff: noqa: PLC0415  # late imports: the redactor is loaded with the first text, pseudonyms where the setting is on
from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.network import Page
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import (
    Action,
    CallTool,
    Json,
    OutputSink,
    ProcessOperation,
    ToolResult,
    UseTool,
)
from cellwall.guard.continued_output import ContinuedOutput
from cellwall.guard.rendering import ModelRenderer, TextFilter, ToolResultCleaner
from cellwall.guard.report import GuardSettings
from cellwall.guard.scanning import Scanner
from cellwall.guard.screening import screen_action
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget

if TYPE_CHECKING:
    from cellwall.guard.pii import Pseudonyms
    from cellwall.guard.redact import RedactingStream, Redactor, SecretHit
    from cellwall.parsing.canaries.canary_set import CanarySet, CanaryStream

StreamName = Literal["stdout", "stderr"]
_CANARY_REFUSED = "the call contains part of a registered text"
_FILE_TOOLS = frozenset(
    ("Read", "Glob", "Grep", "LS", "NotebookRead", "Write", "Edit", "MultiEdit", "NotebookEdit")
)
CANARY_NOTE = "[cellwall: withheld: it contains part of a registered text]\n"
"""In place of output with part of a registered text, such as a system prompt."""


class GuardService:
    """Implements `GuardPort`. Thread-safe; the rules are loaded with the first text."""

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        scanner: Scanner | None = None,
        redactor: Callable[[], Redactor] | None = None,
        canaries: Callable[[], CanarySet | None] = lambda: None,
    ) -> None:
        """`canaries` gives the registered texts; None: there are none."""
        self._canaries = canaries
        self.settings = GuardSettings() if settings is None else settings
        self.scanner = Scanner(self.settings) if scanner is None else scanner
        self._make_redactor = redactor
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, int], _ProcessStreams] = {}
        self._pseudonyms: dict[str, Pseudonyms] = {}
        self._continued = ContinuedOutput(self.scanner)

    @cached_property
    def redactor(self) -> Redactor:
        if self._make_redactor is not None:
            return self._make_redactor()
        from cellwall.guard.redact import Redactor

        return Redactor()

    def load(self) -> None:
        """Load the rules ahead of the first text."""
        self.scanner.scan("a text")
        self.redact("a text")

    def screen(self, action: Action) -> Sequence[Finding]:
        """Findings about code and texts of an action (GRD-9); a setting makes some deny. So does a
        registered text in a call that may leave this machine."""
        found: list[Finding] = []
        self._has_canary(_leaving(action), "input", found, _CANARY_REFUSED)
        return [
            *found,
            *screen_action(
                action, self.scanner, self.settings.denied_code, self.settings.code_patterns
            ),
        ]

    def clean(self, action: Action, result: RunResult) -> RunResult:
        """The result without secrets, with its findings, and rendered if a model reads it."""
        with ScanBudget().running():  # one budget for all texts of a result
            return self._clean(action, result)

    def _clean(self, action: Action, result: RunResult) -> RunResult:
        redact = _RedactedOnce(self.redact)
        result, findings = self._redact_result(action, result, redact)
        canaries = self._canaries()
        # The host of a tool result expects the same structure.
        if canaries and not isinstance(action.operation, ToolResult):
            result = self._withhold_canaries(result, findings)
        if isinstance(action.operation, ToolResult):
            operation = action.operation
            answer = ToolResultCleaner(
                f"the tool {operation.tool}", self._renderer(operation.agent_session, redact)
            )
            value = answer.clean(result.value)
            every = (*result.findings, *findings, *answer.findings)
            return replace(result, value=value, findings=every)
        if isinstance(action.operation, ReceiveMessage | SendReply):
            return result.with_findings(findings)
        read = self._continued.cut(action, result, findings)
        shown = self._renderer(action.session_id or "", redact).show(action, read)
        is_read_by_model = action.audience == "model"
        text = shown.text if is_read_by_model else ""
        if canaries and self._has_canary(
            text, "shown", findings
        ):  # of a file, whose bytes a program gets
            text = CANARY_NOTE
        if not is_read_by_model:
            return result.with_findings((*findings, *shown.findings))
        return replace(
            result,
            findings=(*result.findings, *findings, *shown.findings),
            shown=text,
            withheld=shown.withheld,
        )

    def _withhold_canaries(self, result: RunResult, findings: list[Finding]) -> RunResult:
        """The result without any output that contains part of a registered text."""
        changes: dict[str, Any] = {}
        for name in ("stdout", "stderr"):
            if self._has_canary(getattr(result, name), name, findings):
                changes[name] = CANARY_NOTE.encode()
        for name in ("text", "value", "code_error"):
            if self._has_canary(getattr(result, name), name, findings):
                changes[name] = CANARY_NOTE
        if self._has_canary(list(result.results), "results", findings):
            changes["results"] = (CANARY_NOTE,)
        page = result.payload
        if isinstance(page, Page) and self._has_canary([page.text], "page", findings):
            changes["payload"] = replace(page, text=CANARY_NOTE, body=CANARY_NOTE.encode())
        return replace(result, **changes) if changes else result

    def _has_canary(
        self,
        value: Json | bytes,
        where: str,
        findings: list[Finding],
        message: str = "output with part of a registered text was withheld",
    ) -> bool:
        canaries = self._canaries()
        if not canaries or not value:
            return False
        if not isinstance(value, bytes):
            # One text for all strings: a registered text may be split among them.
            value = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")
        name = canaries.find(value)
        if name is None:
            return False
        found = Finding("canary", "high", message, rule=f"canary.{name}", where=where)
        findings.append(found)
        return True

    def redact(self, text: str) -> str:
        """The text without secrets."""
        return self.redactor.redact_text(text).text

    def read_message(self, message: ReceiveMessage | SendReply) -> str:
        """The text of a message without hidden parts, attacks, beacons and calls to everybody."""
        from cellwall.guard.channel_formats import clean

        if isinstance(message, SendReply):
            return clean(message.channel, message.content)
        report = self.scanner.scan(message.content, kind="input", channel=message.channel)
        return report.text

    def tell(self, action: Action, text: str) -> str:
        """A message of Cellwall that may contain foreign names, rendered for a model."""
        renderer = self._renderer(action.session_id or "", self.redact)
        return renderer.tell(text, "what Cellwall says")

    def stream(self, sink: OutputSink) -> RedactedSink:
        """A sink that redacts secrets, also those split across chunks."""
        return RedactedSink(sink, lambda: self.redactor, self._canaries)

    def end_session(self, session_id: str) -> None:
        """Drop the withheld output and the pseudonyms of a session."""
        with self._lock:
            for key in [key for key in self._streams if key[0] == session_id]:
                del self._streams[key]
            self._pseudonyms.pop(session_id, None)
        self._continued.end_session(session_id)

    def restore(self, session_id: str, text: str) -> str:
        """Replace the tokens of a session by the personal data, for the user."""
        pseudonyms = self._pseudonyms.get(session_id)
        return text if pseudonyms is None else pseudonyms.restore(text)

    def _renderer(self, session_id: str, redact: TextFilter) -> ModelRenderer:
        renderer = ModelRenderer(scanner=self.scanner, redact=redact)
        if not self.settings.hide_personal_data:
            return renderer
        from cellwall.guard.pii import Pseudonyms

        # Actions without a session share no table: one caller could fill it for all others, and
        # learn whether they have seen the same address.
        pseudonyms = Pseudonyms()
        if session_id:
            with self._lock:
                pseudonyms = self._pseudonyms.setdefault(session_id, pseudonyms)
        return replace(renderer, hide=pseudonyms.cover)

    def _redact_result(
        self, action: Action, result: RunResult, redact: TextFilter
    ) -> tuple[RunResult, list[Finding]]:
        found: list[Finding] = []
        changes: dict[str, Any] = {}
        match action.operation:
            case ProcessOperation(process=process):
                stdout, stderr = self._redact_process_output(action, process, result, found)
                changes |= {"stdout": stdout, "stderr": stderr}
            case _:
                for name in ("stdout", "stderr"):
                    data = getattr(result, name)
                    if data and (clean := self._redact_bytes(name, data, found)) != data:
                        changes[name] = clean
        if result.text is not None and (text := redact(result.text)) != result.text:
            changes["text"] = text
        for name in ("value", "code_error"):
            if (value := getattr(result, name)) is not None:
                changes[name] = self._redact_json(value)
        if result.results:
            changes["results"] = tuple(self._redact_json(each) for each in result.results)
        payload = result.payload
        if isinstance(payload, Page):
            body = self._redact_bytes("page", payload.body, found)
            changes["payload"] = replace(payload, body=body, text=redact(payload.text))
        return replace(result, **changes) if changes else result, found

    def _redact_json(self, value: Json) -> Json:
        # Values that are not text need no rules, so none are loaded.
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.redactor.redact_json(value)

    def _redact_bytes(self, where: str, data: bytes, found: list[Finding]) -> bytes:
        if not data:
            return data
        redacted = self.redactor.redact(data)
        found += _summarise_hits(redacted.hits, where)
        return redacted.data

    def _redact_process_output(
        self, action: Action, process: int, result: RunResult, found: list[Finding]
    ) -> tuple[bytes, bytes]:
        """Output of a background process since the last poll: one chunk of its stream."""
        key = (action.session_id or "", process)
        with self._lock:
            made = _ProcessStreams(self.redactor, self._canaries())
            streams = self._streams.setdefault(key, made)
        has_ended = result.exit_code is not None
        cleaned = streams.feed(result.stdout, result.stderr, has_ended=has_ended)
        found += streams.new_findings()
        if has_ended:
            with self._lock:
                self._streams.pop(key, None)
        return cleaned


class _RedactedOnce:
    """Redacts the texts of one result, a text that occurs again only once."""

    __slots__ = ("_done", "_redact")

    def __init__(self, redact: TextFilter) -> None:
        self._redact = redact
        self._done: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        known = self._done.get(text)
        if known is None:
            known = self._done[text] = self._redact(text)
        return known


class RedactedSink:
    """Forwards output without secrets as it arrives; `end` forwards what was held back."""

    def __init__(
        self,
        sink: OutputSink,
        redactor: Callable[[], Redactor],
        canaries: Callable[[], CanarySet | None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._redactor = redactor
        self._canaries = canaries
        self._streams: dict[StreamName, RedactingStream] = {}
        self._searches: dict[StreamName, CanaryStream | None] = {}
        self._ended: set[StreamName] = set()
        """Streams with a registered text in them: nothing more of them is forwarded."""

    def __call__(self, name: StreamName, chunk: bytes) -> None:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = self._redactor().stream()
            self._searches[name] = _search_in(self._canaries())
        self._forward(name, stream.feed(chunk))

    def end(self) -> None:
        for name, stream in self._streams.items():
            self._forward(name, stream.end())

    def _forward(self, name: StreamName, cleaned: bytes) -> None:
        if not cleaned or name in self._ended:
            return
        search = self._searches[name]
        if search is not None and search.feed(cleaned) is not None:
            self._ended.add(name)
            cleaned = CANARY_NOTE.encode()
        self._sink(name, cleaned)


class _ProcessStreams:
    """Both redacting streams of one background process."""

    def __init__(self, redactor: Redactor, canaries: CanarySet | None) -> None:
        self._lock = threading.Lock()
        self._searches = (_search_in(canaries), _search_in(canaries))
        self._ended = [False, False]
        self._stdout, self._stderr = redactor.stream(), redactor.stream()
        self._seen = (0, 0)

    def feed(self, stdout: bytes, stderr: bytes, *, has_ended: bool) -> tuple[bytes, bytes]:
        with self._lock:
            out, err = self._stdout.feed(stdout), self._stderr.feed(stderr)
            if has_ended:
                out, err = out + self._stdout.end(), err + self._stderr.end()
            return self._withhold(0, out), self._withhold(1, err)

    def _withhold(self, which: int, cleaned: bytes) -> bytes:
        """Nothing of a stream from the piece on that completes part of a registered text."""
        if self._ended[which]:
            return b""
        search = self._searches[which]
        self._ended[which] = search is not None and search.feed(cleaned) is not None
        return CANARY_NOTE.encode() if self._ended[which] else cleaned

    def new_findings(self) -> Iterator[Finding]:
        """Findings for secrets that were redacted since the last call."""
        with self._lock:
            first, second = self._seen
            self._seen = (len(self._stdout.hits), len(self._stderr.hits))
            yield from _summarise_hits(self._stdout.hits[first:], "stdout")
            yield from _summarise_hits(self._stderr.hits[second:], "stderr")


def _search_in(canaries: CanarySet | None) -> CanaryStream | None:
    return None if canaries is None else canaries.stream()


def _leaving(action: Action) -> Json:
    """The arguments of a call by which a text can leave. Requests of sandboxes are searched by
    egress; an agent's own file tools stay on this machine."""
    match action.operation:
        case UseTool(tool, given) if tool not in _FILE_TOOLS:
            return given
        case CallServerTool(arguments=given):
            return given
        case CallTool(args=args, kwargs=kwargs):
            return [list(args), dict(kwargs)]
        case _:
            return None


def _summarise_hits(hits: Sequence[SecretHit], where: str) -> Iterator[Finding]:
    """One finding per rule, with a count; positions are left out on purpose."""
    counts: dict[str, int] = {}
    for hit in hits:
        counts[hit.rule] = counts.get(hit.rule, 0) + 1
    for rule, count in counts.items():
        if rule == NOT_SCANNED:
            message = "the rest was withheld: it takes too long to look through for secrets"
            yield Finding("unscanned", "high", message, rule="scan.not-finished", where=where)
            continue
        times = "" if count == 1 else f" {count} times"
        yield Finding("secret", "medium", f"a secret was taken out{times}", rule=rule, where=where)
