"""The whole output of a command, redacted, in a file of its sandbox.

Three actions, each of them judged and recorded: (1) the file is made, so that a path that is
refused costs no run; (2) the command runs, and its output waits in a file without a name on the
host; (3) that output is written, within the limits of the sandbox.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, Protocol, Self

from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding, Outcome
from cellwall.core.types import OutputSink

_IN_MEMORY_BYTES = 1024 * 1024


class WaitingOutput(Protocol):
    """Holds output until the end of a command; `read` then begins at the start."""

    size_bytes: int

    @property
    def sha256(self) -> str: ...

    def write(self, data: bytes, /) -> object: ...

    def read(self, size: int, /) -> bytes: ...

    def rewind(self) -> None: ...


class OutputSpool:
    """Implements `WaitingOutput` for a sandbox of this process."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # closed by `__exit__`
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes, /) -> int:
        self.size_bytes += len(data)
        self._digest.update(data)
        return self._file.write(data)

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)

    def rewind(self) -> None:
        self._file.seek(0)


async def run_into_file(
    operate: Callable[[FileOperation], Awaitable[Outcome]],
    run: Callable[[OutputSink], Awaitable[Outcome]],
    *,
    path: str,
    spool: WaitingOutput,
) -> Outcome:
    """The outcome of the command. Output that could not be written is a finding of it."""
    made = await operate(FileOperation("write", path))  # (1)
    if made.error is not None:
        return made

    def keep(_name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        spool.write(chunk)

    outcome = await run(keep)  # (2)
    if outcome.error is not None:
        return outcome
    spool.rewind()
    size, digest = spool.size_bytes, spool.sha256
    written = await operate(  # (3)
        FileOperation("write", path, source=spool, source_bytes=size, source_sha256=digest)
    )
    if written.error is None:
        return outcome
    message = f"the output was not written to {path:.200}: {written.error.message}"
    finding = Finding("output", "medium", message, rule=written.error.code)
    return replace(outcome, findings=(*outcome.findings, finding))
