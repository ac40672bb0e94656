"""What a person types at the terminal: secrets without an echo, and confirmations.

Secrets never come from arguments or the environment, which other processes can read and shells
keep in their history (SEC-2).
"""

from __future__ import annotations

import os
import resource
import secrets
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click
from anyio import from_thread

from cellwall.core.errors import BadInput
from cellwall.core.showing import fit
from cellwall.interfaces.cli.approval_prompt import NoTerminal, open_terminal
from cellwall.interfaces.terminal import write_all
from cellwall.runtime.agent_processes import refuse_agents

# The line discipline keeps 4095 bytes of a line and silently drops the rest, so a line of that
# length may have been cut.
_MAX_TYPED_BYTES = 4094
_MAX_PASSPHRASE_BYTES = 1024
_NEWLINE = ord("\n")
LOOK_S = 0.2
_AT_A_TERMINAL = "Type the command in a terminal of your own; no option takes its place."
_ENDING = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP)


def read_value(*, max_bytes: int, keep_newline: bool, what: str = "Value") -> bytearray:
    """A value from standard input, or typed twice by a person. The caller wipes it."""
    if os.isatty(0):
        return ask_twice(what, hint="Give the value on standard input.")
    value = _read_to_end(0, max_bytes + 2)
    if not keep_newline and value.endswith(b"\n"):
        del value[-1]
    return value


def ask_twice(what: str, *, hint: str = "") -> bytearray:
    """Read hidden input twice, since it cannot be seen. `hint` is for hosts without a terminal."""
    first = ask(f"{what}: ", hint=hint)
    second = ask("The same again: ", hint=hint)
    is_same = first == second
    second[:] = bytes(len(second))
    if not is_same:
        first[:] = bytes(len(first))
        raise BadInput(
            "the two inputs differ",
            hint="Try again.",
            code="CW-TYPED-TWICE",
        )
    return first


def ask(prompt: str, *, hint: str = "") -> bytearray:
    """One line from the terminal, without an echo."""
    with _terminal(prompt, hint or _AT_A_TERMINAL) as terminal:
        try:
            wait_for(terminal)
            return _read_line(terminal, _MAX_TYPED_BYTES)
        finally:
            write_all(terminal, b"\n")


def ask_approver() -> bytearray:
    """The passphrase for what `approvals.key` guards (POL-13)."""
    return ask("Passphrase of the approver: ")


def wait_for(terminal: int) -> None:
    """Wait for a line in short intervals, so that a signal always ends the wait.

    A signal that arrives right before a blocking read sets Python's flag and does not interrupt the
    read: its handler would run only after the next line. A thread of the event loop receives no
    signals; its task is cancelled instead.
    """
    is_main = threading.current_thread() is threading.main_thread()
    while not select.select([terminal], [], [], LOOK_S)[0]:
        if not is_main:
            with suppress(RuntimeError):  # a thread that anyio did not start
                from_thread.check_cancelled()


def _read_line(descriptor: int, max_bytes: int) -> bytearray:
    """Read up to a newline, which is removed, or to the end of file."""
    room, length = bytearray(max_bytes + 1), 0
    view = memoryview(room)
    # Byte by byte: what follows the line must stay in the descriptor.
    while length <= max_bytes and os.readv(descriptor, [view[length : length + 1]]):
        if room[length] == _NEWLINE:
            break
        length += 1
    view.release()
    line = room[:length]
    room[:] = bytes(len(room))
    if length > max_bytes:
        line[:] = bytes(len(line))
        raise BadInput(
            f"a line has at most {max_bytes} bytes",
            hint="Give a longer value on standard input.",
            code="CW-TYPED-LONG",
        )
    return line


def _read_to_end(descriptor: int, max_bytes: int) -> bytearray:
    room, length = bytearray(max_bytes), 0
    view = memoryview(room)
    while length < max_bytes and (got := os.readv(descriptor, [view[length:]])):
        length += got
    view.release()
    read = room[:length]
    room[:] = bytes(len(room))
    return read


class _NoEcho:
    """A terminal without echo; the echo is restored however the process ends."""

    def __init__(self, terminal: int, prompt: str) -> None:
        self._terminal, self._prompt = terminal, prompt.encode()
        self._before = termios.tcgetattr(terminal)
        self._silent = list(self._before)
        self._silent[0] |= termios.ICRNL
        self._silent[3] |= termios.ICANON | termios.ISIG
        self._silent[3] &= ~(termios.ECHO | termios.ECHONL)
        self._ours: list[signal.Signals] = []

    def hide(self) -> None:
        # TCSAFLUSH: input typed ahead was visible and meant for another program.
        termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._silent)
        write_all(self._terminal, self._prompt)

    def show(self) -> None:
        # TCSAFLUSH: half of a passphrase must not reach the shell's next line.
        with suppress(termios.error):
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._before)

    def take_signals(self) -> None:
        """Handle signals with a default action; handlers that exist reach our `finally`."""
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._on_signal)
                self._ours.append(number)

    def give_signals_back(self) -> None:
        for number in self._ours:
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.show()
        if number == signal.SIGQUIT:
            # The core dump would contain the input. One byte, not zero: with one byte the kernel
            # also does not pipe the core to a collector (core(5)).
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # Reached after SIGTSTP, when the process continues.
        signal.signal(number, self._on_signal)
        self.hide()


def _in_main_thread(work: Callable[[], None]) -> None:
    """Python installs signal handlers only in the main thread."""
    if threading.current_thread() is threading.main_thread():
        work()
        return
    with suppress(RuntimeError, ValueError):  # not in an anyio thread: go on without handlers
        from_thread.run_sync(work)


@contextmanager
def _terminal(prompt: str, hint: str) -> Iterator[int]:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise BadInput(
            "there is no terminal to ask at",
            hint=hint,
            code="CW-NO-TERMINAL",
        ) from None
    try:
        hidden = _NoEcho(terminal, prompt)
        try:
            _in_main_thread(hidden.take_signals)
            hidden.hide()
            yield terminal
        finally:
            hidden.show()
            _in_main_thread(hidden.give_signals_back)
    except termios.error:
        raise BadInput("the terminal is gone", code="CW-NO-TERMINAL") from None
    finally:
        os.close(terminal)


class Passphrases:
    """Returns passphrases: the next line of a descriptor, or input at the terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, is_new: bool) -> bytearray:  # noqa: FBT001  # as the runtime calls it
        if self._descriptor is None:
            hint = "Give the passphrase by --passphrase-fd, or type the command in a terminal."
            if is_new:
                return ask_twice("New passphrase", hint=hint)
            return ask("Passphrase of the vault: ", hint=hint)
        try:
            return _read_line(self._descriptor, _MAX_PASSPHRASE_BYTES)
        except OSError:
            raise BadInput(
                "the descriptor of --passphrase-fd cannot be read",
                hint="Open it in the shell, as in: 3< <(command that prints it)",
                code="CW-USAGE",
            ) from None


_LETTERS = "abcdefghkmnpqrstuvwxyz"
_WORD_LENGTH = 5
_MAX_LINE_BYTES = 4096
_USUAL_COLUMNS = 80
_RESET = b"\x1b[0m"


def confirm(shown: str, *, what: str) -> bool:
    """Whether the person at the terminal confirms what no agent may do for itself (POL-13).

    (1) This process does not belong to an agent, see `runtime.agent_processes`.
    (2) There is a terminal, and the question is shown on it.
    (3) The person types a random word that only the terminal shows: no pipe, file or option can
        answer.

    No option skips a step. `what` completes the sentence "… is for a person". Raises where there
    is no terminal.
    """
    refuse_agents(what)  # (1)
    try:
        with open_terminal() as terminal:  # (2)
            return _read_confirmation(terminal, shown, what)
    except NoTerminal as problem:
        raise BadInput(
            f"{what} is for a person at a terminal: {problem.message}",
            hint="Type the command in a terminal of your own; no option takes its place.",
            code="CW-NOT-CONFIRMED",
        ) from None


def ask_yes_no(question: str) -> bool:
    """Whether the person at standard input answers yes; no is the default.

    For steps that `--yes` can also confirm. Unlike `click.confirm`, a signal ends the wait at
    any moment, see `wait_for`. Ctrl-D at a terminal ends the command as Ctrl-C does.
    """
    while True:
        click.echo(f"{question} [y/N]: ", err=True, nl=False)
        try:
            wait_for(sys.stdin.fileno())
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            raise click.Abort from None
        if not line and sys.stdin.isatty():
            raise click.Abort
        if not line:
            click.echo(err=True)
            raise BadInput(
                "there is no answer on standard input",
                hint="Type the command at a terminal, or confirm it by --yes.",
                code="CW-NO-TERMINAL",
            )
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        click.echo("Type y or n.", err=True)


def _read_confirmation(terminal: int, shown: str, what: str) -> bool:
    word = "".join(secrets.choice(_LETTERS) for _ in range(_WORD_LENGTH))
    columns = os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    question = f"\n{shown}You confirm {what}.\nType {word} to do so (Enter alone: no): "
    # Input typed before the question appeared answers something else.
    termios.tcflush(terminal, termios.TCIFLUSH)
    _write(terminal, _RESET + fit(question, columns).encode())
    while True:  # (3)
        wait_for(terminal)
        try:
            line = os.read(terminal, _MAX_LINE_BYTES)
        except BlockingIOError:
            continue
        return line.decode("utf-8", "replace").strip().lower() == word


def _write(terminal: int, text: bytes) -> None:
    data = memoryview(text)
    while data:
        # In short intervals: a terminal stopped by Ctrl-S accepts nothing.
        if not select.select([], [terminal], [], LOOK_S)[1]:
            continue
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            continue
