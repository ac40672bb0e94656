"""A key printed by a command: a KMS client, a hardware token or a password manager."""

from __future__ import annotations

import os
import select
import subprocess  # named in the import contracts: the operator's own command, never an agent's
import time
from collections.abc import Sequence

from cellwall.core.host_programs import ProgramRefused, operator_program
from cellwall.secrets import failures
from cellwall.secrets.sealing import wipe

MIN_BYTES = 32
MAX_BYTES = 4096
_TIMEOUT_S = 60.0
_HINT = "Run the command of [vault] key_command by hand, and fix it."


def run_key_command(command: Sequence[str]) -> bytearray:
    """The command's output without one trailing newline; the caller wipes it."""
    if not command:
        raise failures.no_key(
            "no command that prints the key is configured",
            hint="Set [vault] key_command to the program and its arguments.",
        )
    try:
        process = subprocess.Popen(
            [operator_program(command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
    except ProgramRefused as refused:
        raise failures.no_key(
            f"the command that prints the key is not started: {refused.why}",
            hint=refused.hint,
            detail=refused.detail,
        ) from None
    except (OSError, ValueError) as error:
        raise failures.no_key(
            "the command that prints the key cannot be started", hint=_HINT, detail=str(error)
        ) from None
    buffer = bytearray(MAX_BYTES + 2)
    try:
        with process:
            try:
                length = _read(process, buffer, time.monotonic() + _TIMEOUT_S)
            finally:
                if process.poll() is None:
                    process.kill()
        return _checked(buffer, length, process.returncode)
    finally:
        wipe(buffer)


def _read(process: subprocess.Popen[bytes], buffer: bytearray, deadline_s: float) -> int:
    """The number of bytes before end of file; bounded in size and time."""
    assert process.stdout is not None  # noqa: S101
    output, length = process.stdout.fileno(), 0
    while length < len(buffer):
        ready, _, _ = select.select([output], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise failures.no_key("the command that prints the key did not end", hint=_HINT)
        got = os.readv(output, [memoryview(buffer)[length:]])
        if got == 0:
            break
        length += got
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()) if length < len(buffer) else 0)
    except subprocess.TimeoutExpired:
        raise failures.no_key(
            "the command that prints the key did not end, or prints too much", hint=_HINT
        ) from None
    return length


def _checked(buffer: bytearray, length: int, code: int | None) -> bytearray:
    if code != 0:
        raise failures.no_key(f"the command that prints the key ended with {code}", hint=_HINT)
    end = length - 1 if length and buffer[length - 1] == ord("\n") else length
    if not MIN_BYTES <= end <= MAX_BYTES:
        raise failures.no_key(
            f"the command printed no key of {MIN_BYTES} to {MAX_BYTES} bytes",
            hint="It must print a random key, for example 32 bytes in base64, and nothing else.",
        )
    return buffer[:end]
