"""Results and errors of the SDK in the forms that shells, models and file functions use."""

from __future__ import annotations

import pytest

import cellwall
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Outcome
from cellwall.interfaces.sdk.execution import Execution
from cellwall.interfaces.sdk.packages import Installation


def outcome(status: str, **fields) -> Outcome:
    return Outcome(status=cellwall.Status(status), action_id="act_1", **fields)


def refused(status: str, code: str) -> Outcome:
    return outcome(status, error=ErrorInfo(code, "no", "Ask a person."))


@pytest.mark.requirement("INT-2")
@pytest.mark.parametrize(
    ("done", "exit_code", "transcript"),
    [
        (outcome("ok", exit_code=0, stdout="a\n", stderr="b\n"), 0, "a\nb"),
        (outcome("ok", exit_code=0), 0, ""),
        (outcome("failed", exit_code=3, stdout="a"), 3, "a"),
        (
            outcome("limit", exit_code=124, limit=LimitName.WALL, stdout="a\n"),
            124,
            "a\ncellwall: the run was ended by its wall limit",
        ),
        (refused("denied", "CW-DENIED"), 125, "cellwall: no [CW-DENIED] Ask a person."),
        (
            refused("error", "CW-COMMAND-NOT-FOUND"),
            127,
            "cellwall: no [CW-COMMAND-NOT-FOUND] Ask a person.",
        ),
        (
            refused("error", "CW-COMMAND-NOT-EXECUTABLE"),
            126,
            "cellwall: no [CW-COMMAND-NOT-EXECUTABLE] Ask a person.",
        ),
    ],
)
def test_a_result_has_the_exit_code_of_a_shell_and_a_text_for_a_model(done, exit_code, transcript):
    execution = Execution.of(done)
    assert (execution.shell_exit_code, execution.transcript) == (exit_code, transcript)
    assert (execution.refusal is None) is (done.error is None)


def test_a_failed_installation_says_why_and_a_good_one_nothing():
    assert Installation.of(outcome("ok", exit_code=0)).failure == ""
    failed = Installation.of(refused("denied", "CW-PACKAGE-REFUSED"))
    assert failed.failure == "no [CW-PACKAGE-REFUSED] Ask a person."


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("CW-NOT-FOUND", FileNotFoundError),
        ("CW-NOT-A-FILE", IsADirectoryError),
        ("CW-NOT-A-DIRECTORY", NotADirectoryError),
        ("CW-ALREADY-EXISTS", FileExistsError),
        ("CW-PATH-OUTSIDE", PermissionError),
        ("CW-DENIED", PermissionError),
        ("CW-ANY-OTHER", PermissionError),
    ],
)
def test_an_error_of_the_file_api_is_the_one_that_open_raises(code, kind):
    error = cellwall.as_os_error(cellwall.WorkspaceError("no", code=code), "a.txt")
    assert (type(error), error.filename) == (kind, "a.txt")


def test_the_mode_of_a_file_counts_where_the_caller_asks():
    closed = cellwall.FileEntry("a", "a", "file", 0, 0o200, 0.0)
    cellwall.check_access(closed, "a", "write")
    with pytest.raises(PermissionError):
        cellwall.check_access(closed, "a", "read")
    cellwall.check_access(None, "a", "read")  # whether there is one is for the read to say
