"""What is run and its result, as callers of the SDK have them.

Light: a single run in a warm supervisor takes less time than most imports.
"""

# ruff: noqa: PLC0415  # late imports: only streaming callers need codecs

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import Outcome, PackageUse, Status
from cellwall.interfaces import REFUSED

if TYPE_CHECKING:
    from cellwall.core.types import OutputSink

_NOT_STARTED = {"CW-COMMAND-NOT-FOUND": 127, "CW-COMMAND-NOT-EXECUTABLE": 126}


def argv_of(command: object) -> tuple[str, ...]:
    """The argument vector: a string goes to the shell, a list is used directly."""
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise BadInput(
            f"a command must be a string or a list of strings, not {type(command).__name__}",
            hint="Write run('ls -la') or run(['ls', '-la']).",
            code="CW-NOT-TEXT",
        )
    return tuple(command)


TextSink = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a command or of code."""

    outcome: Outcome = field(repr=False)
    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    value: object
    text: str | None
    results: Sequence[object]
    error: object
    limit: str | None
    state: Literal["kept", "lost"] | None = None
    """Whether a live sandbox kept its variables, also those of earlier calls, after code ran."""
    packages: Sequence[PackageUse] = ()
    """What the run got from package registries."""

    @classmethod
    def of(cls, outcome: Outcome) -> Execution:
        return cls(
            outcome=outcome,
            status=outcome.status,
            exit_code=outcome.exit_code,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            value=outcome.value,
            text=outcome.text,
            results=outcome.results,
            error=outcome.error if outcome.error is not None else outcome.code_error,
            limit=outcome.limit.value if outcome.limit else None,
            state=outcome.state,
            packages=outcome.packages,
        )

    def raise_for_status(self) -> Execution:
        self.outcome.raise_for_status()
        return self

    @property
    def refusal(self) -> CellwallError | None:
        """Why nothing ran: a denial or a failure, with code and hint; None if the program ran."""
        if self.status not in {Status.DENIED, Status.ERROR}:
            return None
        try:
            self.outcome.raise_for_status()
        except CellwallError as error:
            return error
        return None

    @property
    def shell_exit_code(self) -> int:
        """As a shell answers: the program's own code, 127 for a missing program, 126 for one that
        may not be executed, and 125 for everything that Cellwall refused."""
        if (refusal := self.refusal) is not None:
            return _NOT_STARTED.get(refusal.code, REFUSED)
        return self.exit_code or 0

    @property
    def transcript(self) -> str:
        """The output as a tool shows it to a model: stdout, stderr, and why the program was refused
        or ended early."""
        reason = f"the run was ended by its {self.limit} limit" if self.limit else ""
        if self.refusal is not None:
            reason = str(self.refusal)
        parts = (self.stdout, self.stderr, f"cellwall: {reason}" if reason else "")
        return "\n".join(part.rstrip("\n") for part in parts if part)


def text_sink(on_stdout: TextSink | None, on_stderr: TextSink | None) -> OutputSink | None:
    """Delivers text as it comes; an incomplete character waits for its remaining bytes."""
    if on_stdout is None and on_stderr is None:
        return None
    import codecs

    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make("replace"), "stderr": make("replace")}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}

    def deliver(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        callback = callbacks[name]
        text = decoders[name].decode(chunk)
        if callback is not None and text:
            callback(text)

    return deliver
