"""What must not be seen or remembered: values and passphrases, read without an echo.

Never from arguments or the environment, which other processes see and shells remember (SEC-2).
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.core.errors import BadInput
from holdfast.interfaces.cli.streams import write_all

_MOST_TYPED_BYTES = 4095  # what the kernel keeps of one line
_MOST_PASSPHRASE_BYTES = 1024
_NEWLINE = ord("\n")


def read_value(*, most_bytes: int, keep_newline: bool) -> bytearray:
    """From standard input, or from a person who types it twice. The caller wipes it."""
    if os.isatty(0):
        return ask_twice("Value")
    value = _read_to_end(0, most_bytes + 2)
    if not keep_newline and value.endswith(b"\n"):
        del value[-1]
    return value


def ask_twice(what: str) -> bytearray:
    """Since nobody sees what they type."""
    first = ask(f"{what}: ")
    second = ask("The same again: ")
    is_same = first == second
    second[:] = bytes(len(second))
    if not is_same:
        first[:] = bytes(len(first))
        raise BadInput(
            "what was typed differs from what was typed before",
            mend="Try again.",
            code="HF-TYPED-TWICE",
        )
    return first


def ask(prompt: str) -> bytearray:
    """One line from the terminal, without an echo."""
    with _terminal() as terminal:
        write_all(terminal, prompt.encode())
        try:
            return _line(terminal, _MOST_TYPED_BYTES)
        finally:
            write_all(terminal, b"\n")


def _line(descriptor: int, most_bytes: int) -> bytearray:
    """Up to a newline, which is taken away, or to the end."""
    room, length = bytearray(most_bytes + 1), 0
    view = memoryview(room)
    # One by one: what follows the line is not ours to take.
    while length <= most_bytes and os.readv(descriptor, [view[length : length + 1]]):
        if room[length] == _NEWLINE:
            break
        length += 1
    view.release()
    line = room[:length]
    room[:] = bytes(len(room))
    if length > most_bytes:
        line[:] = bytes(len(line))
        raise BadInput(f"a line has at most {most_bytes} bytes", code="HF-TYPED-LONG")
    return line


def _read_to_end(descriptor: int, most_bytes: int) -> bytearray:
    room, length = bytearray(most_bytes), 0
    view = memoryview(room)
    while length < most_bytes and (got := os.readv(descriptor, [view[length:]])):
        length += got
    view.release()
    read = room[:length]
    room[:] = bytes(len(room))
    return read


@contextmanager
def _terminal() -> Iterator[int]:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise BadInput(
            "there is no terminal to ask at",
            mend="Give a value on standard input, and a passphrase by --passphrase-fd.",
            code="HF-NO-TERMINAL",
        ) from None
    try:
        before = termios.tcgetattr(terminal)
        silent = list(before)
        silent[0] |= termios.ICRNL
        silent[3] = (silent[3] | termios.ICANON | termios.ISIG) & ~(termios.ECHO | termios.ECHONL)
        # What was typed ahead was typed for somebody else, and seen.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
        try:
            yield terminal
        finally:
            with suppress(termios.error):
                termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
    except termios.error:
        raise BadInput("the terminal is gone", code="HF-NO-TERMINAL") from None
    finally:
        os.close(terminal)


class Passphrases:
    """Answers whoever needs a passphrase: the lines of a descriptor in turn, or a person."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, is_new: bool) -> bytearray:  # noqa: FBT001  # as the runtime calls it
        if self._descriptor is None:
            return ask_twice("New passphrase") if is_new else ask("Passphrase of the vault: ")
        try:
            return _line(self._descriptor, _MOST_PASSPHRASE_BYTES)
        except OSError:
            raise BadInput(
                "--passphrase-fd names no descriptor that can be read",
                mend="Open it in the shell, as in: 3< <(command that prints it)",
                code="HF-USAGE",
            ) from None
