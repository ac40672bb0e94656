"""`cellwall`: runs the command that was named, and turns every result into an exit code.

Only the standard library is imported here. A `run` without options needs no parser of options: in a
warm supervisor it takes less time than the import of click.
"""

# ruff: noqa: PLC0415  # late imports: only the called command loads, error modules only for errors

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

from cellwall.interfaces import REFUSED, is_hook
from cellwall.interfaces.cli import AS_JSON
from cellwall.interfaces.cli.plain_run import command_of, run_plain

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import Any

    from cellwall.core.outcomes import ErrorInfo

_PIPE_BROKEN = 128 + signal.SIGPIPE


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived while no event loop was running."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


def _on_signal(number: int, _frame: object) -> None:
    raise Terminated(signal.Signals(number))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the whole program; no exception leaves it."""
    plug_closed_descriptors()
    signal.signal(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        # An `apply` that a lost connection ends still writes its outcome to the audit log.
        signal.signal(signal.SIGHUP, _on_signal)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if is_hook(words):
        from cellwall.interfaces.hooks.client import answer

        return answer(words[1:])
    try:
        code = _invoke(words)
        sys.stdout.flush()
    except OSError as error:
        from cellwall.interfaces.cli.output import UNWRITABLE

        code = _PIPE_BROKEN if error.errno == errno.EPIPE else _report(UNWRITABLE, as_json=False)
        _forget_output()
    return code


def _invoke(words: list[str]) -> int:
    """Run the command and map every way it can end to an exit code, except a broken pipe."""
    meta: dict[str, Any] = {}
    try:
        command = command_of(words)
        ended = None if command is None else run_plain(command)
        if ended is not None:
            return ended
        from cellwall.interfaces.cli.commands import invoke

        return invoke(words, meta)
    except KeyboardInterrupt:
        return _report_signal(signal.SIGINT, meta)
    except Terminated as ended_by:
        return _report_signal(ended_by.number, meta)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # ERR-1: no trace of any exception leaves
        return _report(_describe(error), as_json=AS_JSON in meta)


def _report_signal(number: signal.Signals, meta: dict[str, Any]) -> int:
    """The shell reports a signal itself; a program that reads JSON needs an object."""
    if AS_JSON in meta:
        from cellwall.core.outcomes import ErrorInfo

        _report(ErrorInfo("CW-INTERRUPTED", f"ended by {number.name}"), as_json=True)
    return 128 + number


def _describe(error: Exception) -> ErrorInfo:
    """Anything but `CellwallError` is a bug.

    A traceback may contain paths, variables and secrets: it is shown only on request.
    """
    from cellwall.config.debugging import shows_traces
    from cellwall.core.errors import CellwallError
    from cellwall.core.outcomes import ErrorInfo

    if isinstance(error, CellwallError):
        return ErrorInfo.of(error)
    if shows_traces():
        sys.excepthook(type(error), error, error.__traceback__)
    return ErrorInfo(
        "CW-INTERNAL",
        "internal error",
        'Report it. With profile = "development" in the configuration file and CELLWALL_DEBUG=1 '
        "in the environment the traceback is shown.",
    )


def _report(error: ErrorInfo, *, as_json: bool) -> int:
    from cellwall.interfaces.cli.output import print_error

    print_error(error, as_json=as_json)
    return REFUSED


def plug_closed_descriptors() -> None:
    """Open /dev/null for closed descriptors 0, 1 and 2, so that no file gets their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python has no stream objects for closed descriptors; libraries expect them.
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def _forget_output() -> None:
    """Discard buffered output, which has no reader; Python would report an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
