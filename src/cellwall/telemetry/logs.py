"""Log lines of our own processes: JSON or text, one line each, redacted before they are written.

Only processes that Cellwall owns (supervisor, service) configure logging; a program that embeds the
SDK configures its own.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal

MAX_LINE_CHARACTERS = 16 * 1024
_MAX_REDACTED_CHARACTERS = 1024 * 1024
_WITHHELD = "[withheld: it could not be redacted]"
_MANAGED = "cellwall"
Redact = Callable[[str], str]


class LogRedactor:
    """All redactors of a process: the rules for credentials, and the values of each open vault."""

    def __init__(self, *redactors: Redact) -> None:
        self._redactors = redactors
        self._lock = threading.Lock()

    def add(self, redact: Redact) -> None:
        with self._lock:
            self._redactors = (*self._redactors, redact)

    def remove(self, redact: Redact) -> None:
        with self._lock:
            self._redactors = tuple(each for each in self._redactors if each is not redact)

    def __call__(self, text: str) -> str:
        """The text without secrets. What cannot be redacted is withheld, never shown."""
        if len(text) > _MAX_REDACTED_CHARACTERS:
            return _WITHHELD
        try:
            for redact in self._redactors:
                text = redact(text)
        except Exception:  # noqa: BLE001  # any failure: rather no message than a secret
            return _WITHHELD
        # After the redaction: a secret that is cut in two would not be recognised.
        return text[:MAX_LINE_CHARACTERS]


class RedactedFormatter(logging.Formatter):
    """One line for each record. Line breaks and control characters are escaped: no message can
    forge a second record."""

    def __init__(
        self, form: Literal["json", "text"], redact: Redact, *, has_traces: bool = True
    ) -> None:
        super().__init__()
        self._form, self._redact, self._has_traces = form, redact, has_traces

    def format(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # arguments that do not fit the message
            message = "[malformed log call]"
        fields = self._fields(record)
        trace = self._exception(record)
        if self._form == "json":
            line: dict[str, object] = {
                "time": _timestamp(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": self._redact(message),
                **fields,
            }
            if trace:
                line["exception"] = self._redact(trace)
            return json.dumps(line, ensure_ascii=True)
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        text = f"{self._redact(message)}{shown}" + (f" | {self._redact(trace)}" if trace else "")
        head = f"{_timestamp(record.created)} {record.levelname} {record.name}"
        return f"{head} {_escaped(text)}"

    def _exception(self, record: logging.LogRecord) -> str:
        if not record.exc_info:
            return ""
        if self._has_traces:
            return self.formatException(record.exc_info)
        kind = record.exc_info[0]
        return "unknown" if kind is None else kind.__name__

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        given = getattr(record, "fields", None)
        if not isinstance(given, Mapping):
            return {}
        return {
            str(name): self._redact(value) if isinstance(value, str) else value
            for name, value in given.items()
            if isinstance(value, str | int | float)
        }


def _timestamp(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03}Z"


def _escaped(text: str) -> str:
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def configure_logging(
    handler: logging.Handler,
    *,
    form: Literal["json", "text"],
    level: str,
    redact: Redact,
    has_traces: bool = True,
) -> None:
    """Send every log record of this process to the handler. A second call replaces the first.

    Without traces an exception is its type alone: for a log that other users read.
    """
    handler.setFormatter(RedactedFormatter(form, redact, has_traces=has_traces))
    root = logging.getLogger()
    for former in list(root.handlers):
        if former.get_name() == _MANAGED:
            root.removeHandler(former)
            former.close()
    handler.set_name(_MANAGED)
    root.addHandler(handler)
    # Records of libraries below `warning` may quote requests and headers whole.
    root.setLevel(logging.WARNING)
    logging.getLogger(_MANAGED).setLevel(level.upper())
