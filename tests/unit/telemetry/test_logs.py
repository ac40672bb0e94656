"""Log lines: one object each, without secrets, and no message forges another line (OBS-1)."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from cellwall.core.types import Principal, RunCommand
from cellwall.runtime.observing import log_redactor
from cellwall.telemetry.logs import (
    MAX_LINE_CHARACTERS,
    LogRedactor,
    RedactedFormatter,
    configure_logging,
)
from cellwall.telemetry.service import Telemetry
from unit.runtime.test_pipeline import Stage, action

SECRET = "ghp_" + "q7Zk2" * 7 + "x"
LOG = logging.getLogger("cellwall.test")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is logged from now on, as JSON lines of level `info`."""
    root, ours = logging.getLogger(), logging.getLogger("cellwall")
    before = root.level, ours.level
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    configure_logging(handler, form="json", level="info", redact=log_redactor)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before[0])
    ours.setLevel(before[1])


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.requirement("OBS-1")
def test_an_action_is_one_line_that_says_nothing_of_what_it_did(written: io.StringIO) -> None:
    wanted = action(operation=RunCommand(("curl", SECRET)), env={"A": SECRET})
    assert SECRET in repr(wanted)  # the control
    runtime = replace(Stage().runtime(), telemetry=Telemetry())
    outcome = anyio.run(runtime.perform, wanted)
    (line,) = lines(written)
    assert {key: line[key] for key in line if key not in {"time", "duration_ms"}} == {
        "level": "info",
        "logger": "cellwall.action",
        "message": "action",
        "action_id": outcome.action_id,
        "operation": "run-command",
        "interface": "sdk",
        "status": "ok",
        "verdict": "allow",
        "audit_id": outcome.audit_id,
    }
    assert isinstance(line["duration_ms"], float)
    assert SECRET not in written.getvalue()


@pytest.mark.requirement("OBS-1")
def test_secrets_in_messages_fields_and_exceptions_are_redacted(written: io.StringIO) -> None:
    LOG.warning("the token %s was refused", SECRET, extra={"fields": {"token": f"t={SECRET}"}})
    try:
        raise ValueError(f"password: {SECRET}")
    except ValueError:
        LOG.exception("it failed")
    first, second = lines(written)
    assert "was refused" in str(first["message"])
    assert "ValueError" in str(second["exception"])
    assert SECRET not in written.getvalue()


def test_a_log_for_other_readers_has_no_traces() -> None:
    told = []
    for has_traces in (True, False):
        form = RedactedFormatter("text", str, has_traces=has_traces)
        try:
            raise ValueError("why")
        except ValueError:
            record = LOG.makeRecord("x", 40, "", 1, "it failed", (), sys.exc_info())
        told.append(form.format(record))
    assert "Traceback" in told[0]  # the control
    assert told[1].endswith("it failed | ValueError")


@pytest.mark.requirement("OBS-1")
def test_values_of_a_vault_are_redacted_while_its_runtime_is_open(written: io.StringIO) -> None:
    def redact(text: str) -> str:
        return text.replace("correct horse", "[secret pet]")

    log_redactor.add(redact)
    LOG.warning("correct horse")
    log_redactor.remove(redact)
    LOG.warning("correct horse")  # the control: the rules know no such form
    assert [line["message"] for line in lines(written)] == ["[secret pet]", "correct horse"]


FORGED = 'x\n{"level": "info", "message": "forged"}\r\u2028\x00\x1b[2J\ud800'


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("form", ["json", "text"])
def test_no_message_forges_a_second_line(form) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    configure_logging(handler, form=form, level="info", redact=log_redactor)
    try:
        # Not by a logger: pytest's own handler raises for the second, and its workers cannot pass on
        # the lone surrogate of the first.
        fields = {"fields": {"who": FORGED}}
        handler.handle(LOG.makeRecord("x", 30, "", 1, FORGED, (), None, extra=fields))
        handler.handle(LOG.makeRecord("x", 30, "", 1, "%d", ("not a number",), None))
    finally:
        logging.getLogger().removeHandler(handler)
    told = stream.getvalue()
    assert told.count("\n") == 2
    assert len(told.splitlines()) == 2
    assert told.isascii() or form == "text"
    assert not set(told) & {"\x00", "\x1b", "\r", "\u2028"}
    told.encode()  # no lone surrogate: the file is UTF-8


@pytest.mark.requirement("OBS-1")
def test_what_cannot_be_redacted_is_withheld() -> None:
    def broken(text: str) -> str:
        raise ZeroDivisionError(text)

    assert SECRET not in LogRedactor(broken)(SECRET)
    whole = LogRedactor()("x" * (MAX_LINE_CHARACTERS + 1))
    assert len(whole) == MAX_LINE_CHARACTERS
    assert "withheld" in LogRedactor()("x" * (2 << 20))


def test_a_second_configuration_replaces_the_first() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    first, second = (logging.StreamHandler(io.StringIO()) for _ in range(2))
    for handler in (first, second):
        configure_logging(handler, form="text", level="error", redact=str)
    assert [each for each in root.handlers if each not in before] == [second]
    root.removeHandler(second)


def test_libraries_are_logged_from_warning_on_only(written: io.StringIO) -> None:
    logging.getLogger("urllib3").info("GET /?token=%s", SECRET)
    assert written.getvalue() == ""


def test_a_principal_of_an_unknown_interface_is_logged_as_other(written: io.StringIO) -> None:
    wanted = action(principal=Principal("me", "x\ny" * 1000))
    anyio.run(replace(Stage().runtime(), telemetry=Telemetry()).perform, wanted)
    assert [line["interface"] for line in lines(written)] == ["other"]
