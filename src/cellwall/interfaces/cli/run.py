"""`cellwall run | code | shell`: a command, code or a shell in a new sandbox."""

# ruff: noqa: PLC0415  # late imports: a run in a warm supervisor takes less time than these modules

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput
from cellwall.core.languages import ALIASES, BY_EXTENSION, NAMES, canonical
from cellwall.core.users_inside import SANDBOX_USER, parse_user
from cellwall.interfaces import REFUSED
from cellwall.interfaces.cli.options import (
    EXIT_CODES,
    action_of,
    app_for,
    build_packages,
    sandbox_options,
)
from cellwall.interfaces.cli.plain_run import is_interactive
from cellwall.interfaces.sandbox_options import SandboxOptions, read_bounded
from cellwall.interfaces.supervisor.requests import WORKSPACE, code_message, command_message

if TYPE_CHECKING:
    from cellwall.core.types import RunCode, RunCommand
    from cellwall.runtime.app import App

_DEFAULT_LANGUAGE = "python"
_MAX_REMOTE_BYTES = 64 * 1024 * 1024


@click.command(
    # Everything after the command's name belongs to the command, also without `--`.
    context_settings={"allow_interspersed_args": False},
    epilog=f"""\b
Examples:
  cellwall run -- ls -la
  cellwall run --timeout 5 --memory 256m -- python3 -c 'print(1)'
  cellwall run --here -- make test
  cellwall run --package requests -- python3 -c 'import requests'
  echo data | cellwall run --stdin -- wc -c
  cellwall run --json -- uname -a | jq .stdout

{EXIT_CODES}""",
)
@sandbox_options
@click.option(
    "--own-path",
    is_flag=True,
    help="Mount the workspace at its host path as well, so that absolute paths and the paths in "
    "messages are the same inside and outside.",
)
@click.option(
    "--cwd",
    metavar="DIR",
    default=WORKSPACE,
    help="Working directory inside the sandbox.  [default: /workspace]",
)
@click.option(
    "--user",
    metavar="NAME",
    default="sandbox",
    help="The user inside: sandbox, or root, a second unprivileged user where the configuration "
    "allows one.  [default: sandbox]",
)
@click.argument("command", metavar="-- CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    command: tuple[str, ...],
    cwd: str,
    user: str,
    **typed: Any,  # noqa: ANN401  # the shared options
) -> int:
    """Run a command in a new sandbox.

    The command has no network, none of your files and none of your variables, except what options
    give it. Its output appears as it is written. No shell is involved: for pipes write
    -- sh -c 'a | b'. At a terminal, a shell or interpreter without arguments (-- bash) is
    interactive.
    """
    options = SandboxOptions(**typed)
    if not command and not options.as_json:
        click.echo(ctx.get_help(), err=True)
        return REFUSED
    if not command:
        raise BadInput("no command was given", hint="Write it after `--`.", code="CW-USAGE")
    # Options that only a single run supports: the command gets no terminal.
    named = parse_user(user)
    is_second = named != SANDBOX_USER
    needs_run = options.as_json or options.stdin or options.own_path or options.secret or is_second
    if is_interactive(command) and not needs_run:
        return _open_shell(options, command, cwd)
    message = command_message(command, cwd, named)

    def operation(_app: App) -> RunCommand:
        from cellwall.core.types import RunCommand

        return RunCommand(command, cwd, user=named)

    return _run(build_packages(options), operation, message)


@click.command(
    epilog=f"""\b
Examples:
  cellwall code script.py
  cellwall code -c 'print(6 * 7)'
  cellwall code -l shell -c 'echo $HOME; ls /'
  echo 'console.log(1)' | cellwall code -l javascript -
  cellwall code --package requests -c 'import requests; requests.__version__'
  cellwall code --json -c '20 + 1' | jq .value

{EXIT_CODES}""",
)
@click.option(
    "-l",
    "--language",
    metavar="LANG",
    help=f"One of {', '.join(NAMES)}.  [default: by the file's extension, else python]",
    shell_complete=lambda _ctx, _param, begun: [n for n in sorted(ALIASES) if n.startswith(begun)],
)
@click.option("-c", "text", metavar="TEXT", help="The code itself.")
@sandbox_options
@click.argument("file", required=False, type=click.Path(), metavar="[FILE | -]")
def code(language: str | None, text: str | None, file: str | None, **typed: Any) -> int:  # noqa: ANN401  # the shared options
    """Run code in a new sandbox: a FILE, the TEXT of -c, or standard input (-).

    Standard output is exactly what the code prints. Only --json includes the value of Python's
    last expression.
    """
    options = SandboxOptions(**typed)
    if (text is None) == (file is None):
        raise BadInput(
            "name one source of code" if file is None else "-c and a file were both given",
            hint="Write a FILE, or -c TEXT, or - for standard input.",
            code="CW-USAGE",
        )
    if file == "-" and options.stdin:
        raise BadInput(
            "standard input cannot be both the code and the program's input",
            hint="Give the code as a file or with -c.",
            code="CW-USAGE",
        )
    extension = os.path.splitext(file or "")[1].lower()
    name = canonical(language or BY_EXTENSION.get(extension, _DEFAULT_LANGUAGE))

    def operation(app: App) -> RunCode:
        from cellwall.core.types import RunCode

        max_bytes = app.settings.sandbox.max_code_bytes
        return RunCode(name, _read_source(text, file, max_bytes=max_bytes))

    options = build_packages(options)
    if file == "-":  # standard input cannot be read again where the supervisor does not answer
        return _run(options, operation, None)
    return _run(
        options,
        operation,
        code_message(name),
        lambda: _read_source(text, file, max_bytes=_MAX_REMOTE_BYTES),
    )


def _run(
    options: SandboxOptions,
    operation: Callable[[App], RunCommand | RunCode],
    message: Mapping[str, Any] | None,
    read_data: Callable[[], bytes] = lambda: b"",
) -> int:
    """In the supervisor if one runs and takes `message` and its data; else in this process."""
    from cellwall.interfaces.cli.via_supervisor import (
        open_connection,
        run_in_supervisor,
        start_after_second_run,
    )

    connection = None if message is None else open_connection()
    if connection is not None and message is not None:
        ended = run_in_supervisor(connection, options.to_message(), message, read_data())
        if ended is not None:
            return ended
    from cellwall.interfaces.cli.execute import execute

    app = app_for(options)
    ended = execute(app, action_of(options, app, operation(app)), as_json=options.as_json)
    start_after_second_run()
    return ended


def _read_source(text: str | None, file: str | None, *, max_bytes: int) -> bytes:
    if text is not None:
        return os.fsencode(text)
    data = read_bounded(0, max_bytes) if file == "-" else _read_file(file or "", max_bytes)
    if data is None:
        raise BadInput(
            f"the code is larger than the {max_bytes} bytes allowed",
            hint="Put data into a file of the workspace, or raise sandbox.max_code_bytes.",
            code="CW-CODE-TOO-LARGE",
        )
    return data


def _read_file(file: str, max_bytes: int) -> bytes | None:
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer for ever.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(file, flags)
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    try:
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            raise _unreadable(file, IsADirectoryError(errno.EISDIR, ""))
        if not stat.S_ISREG(info.st_mode):
            raise _file_error(file, "is not a regular file", "Use - to read from a pipe.")
        return None if info.st_size > max_bytes else read_bounded(descriptor, max_bytes)
    except OSError as error:
        raise _unreadable(file, error) from None
    finally:
        os.close(descriptor)


_PROBLEMS = {
    errno.ENOENT: ("does not exist", "Check the name."),
    errno.ENOTDIR: ("does not exist", "Check the name."),
    errno.EISDIR: ("is a directory", "Name one file; give a directory with --workspace."),
    errno.EACCES: ("may not be read", "Check its permissions."),
    errno.ENAMETOOLONG: ("has too long a name", "Check the name; for code itself use -c."),
    errno.ENXIO: ("is not a regular file", "Use - to read from a pipe."),
    errno.ELOOP: ("is a loop of links", "Name the file itself."),
}


def _unreadable(file: str, error: OSError | ValueError) -> BadInput:
    number = error.errno if isinstance(error, OSError) else None
    return _file_error(file, *_PROBLEMS.get(number or 0, ("cannot be read", "Check the name.")))


def _file_error(file: str, problem: str, hint: str) -> BadInput:
    return BadInput(f"{file[:200]!r} {problem}", hint=hint, code="CW-CODE-FILE")


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  cellwall shell
  cellwall shell --here
  cellwall shell --allow-domain pypi.org -- python3
""",
)
@sandbox_options
@click.argument("command", metavar="[-- CMD [ARG]...]", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], **typed: Any) -> int:  # noqa: ANN401  # the shared options
    """Open a shell on a terminal in a new sandbox, which ends with the shell."""
    options = SandboxOptions(**typed)
    if options.as_json or options.stdin:
        raise BadInput(
            "a shell is for a person at a terminal",
            hint="Without one, use: cellwall run -- CMD.",
            code="CW-USAGE",
        )
    if options.secret:
        raise BadInput(
            "a shell gets no secrets yet",
            hint="Use cellwall run --secret NAME -- CMD.",
            code="CW-USAGE",
        )
    return _open_shell(options, command or ("bash",), WORKSPACE)


def _open_shell(options: SandboxOptions, command: Sequence[str], cwd: str) -> int:
    """Until the program ends; returns its exit code."""
    if not (os.isatty(0) and os.isatty(1)):
        raise BadInput(
            "there is no terminal here",
            hint="Without one, use: cellwall run -- CMD.",
            code="CW-NO-TERMINAL",
        )
    from cellwall.interfaces.cli.execute import show
    from cellwall.interfaces.cli.interactive import TerminalProgram

    program = TerminalProgram(build_packages(options), tuple(command), cwd)
    return show(
        program.perform, notes=program.notes, kept=program.kept, as_json=False, relays=False
    )
