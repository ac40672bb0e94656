"""`cellwall create | exec | cp`: live sandboxes, which persist between commands."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.types import RunCommand
from cellwall.core.users_inside import parse_user
from cellwall.interfaces import REFUSED
from cellwall.interfaces.cli.options import (
    FINITE,
    build_packages,
    json_option,
    sandbox_options,
)
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.cli.snapshots import complete_snapshot
from cellwall.interfaces.cli.supervisor import complete_id
from cellwall.interfaces.outcome_text import error_line, finding_lines
from cellwall.interfaces.sandbox_options import SandboxOptions, read_bounded, variables

if TYPE_CHECKING:
    from cellwall.core.outcomes import Outcome
    from cellwall.interfaces.cli.run_output import RunRenderer

_KEEP_ALIVE_S = 600.0
_MIN_KEEP_ALIVE_S, _MAX_KEEP_ALIVE_S = 1.0, 86_400.0
_MAX_FILE_BYTES = 64 * 1024 * 1024


@click.command(
    epilog="""\b
Examples:
  cellwall create --here
  cellwall create --package requests --package 'pandas<3'
  id=$(cellwall create)
  cellwall exec $id -- make
  cellwall cp $id:out.txt .
  cellwall kill $id
"""
)
@sandbox_options
@click.option(
    "--keep-alive",
    type=FINITE,
    default=_KEEP_ALIVE_S,
    show_default=True,
    metavar="S",
    help="End the sandbox after this many idle seconds.",
)
@click.option(
    "--from-snapshot",
    metavar="ID",
    shell_complete=complete_snapshot,
    help="Begin with the files of a snapshot.",
)
@click.option(
    "--second-user",
    is_flag=True,
    help="Give the sandbox a second unprivileged user, root; the configuration must allow it.",
)
def create(
    keep_alive: float,
    from_snapshot: str | None,
    *,
    second_user: bool,
    **typed: Any,  # noqa: ANN401  # the shared options
) -> int:
    """Create a live sandbox in the supervisor and print its id.

    `exec`, `cp`, `logs`, `ps` and `kill` use that id, from any of your terminals.
    """
    options = SandboxOptions(**typed)
    if not _MIN_KEEP_ALIVE_S <= keep_alive <= _MAX_KEEP_ALIVE_S:
        raise BadInput(
            f"a sandbox cannot be kept alive for {keep_alive:g} s",
            hint=f"Give from {_MIN_KEEP_ALIVE_S:g} to {_MAX_KEEP_ALIVE_S:g} seconds.",
            code="CW-BAD-LIMIT",
        )
    if options.passphrase_fd is not None:
        raise BadInput(
            "the supervisor cannot read a descriptor of this process",
            hint="Use cellwall run --secret NAME --passphrase-fd N -- CMD.",
            code="CW-USAGE",
        )
    if options.stdin:
        raise BadInput(
            "a sandbox has no standard input of its own",
            hint="Give it to a command: cellwall exec ID --stdin -- CMD.",
            code="CW-USAGE",
        )
    from cellwall.interfaces.sdk.blocking import Sandbox

    made = Sandbox.create(
        keep_alive=keep_alive,
        from_snapshot=from_snapshot,
        second_user=second_user,
        **build_packages(options).for_sdk(),
    )
    try:
        if options.as_json:
            print_json({"id": made.id})
        else:
            print_text(f"{made.id}\n")
    except BaseException:  # the id was not printed, so no command could end the sandbox
        made.kill()
        raise
    return 0


@click.command(
    name="exec",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  cellwall exec sbx_... -- ls -la
  echo data | cellwall exec --stdin sbx_... -- wc -c
""",
)
@click.option(
    "--cwd", metavar="DIR", default="/workspace", help="Working directory inside the sandbox."
)
@click.option(
    "--user",
    metavar="NAME",
    default="sandbox",
    show_default=True,
    help="The user inside: sandbox, or root in a sandbox with a second user.",
)
@click.option("--env", metavar="K=V", multiple=True, help="Variable; may be repeated.")
@click.option("--timeout", type=FINITE, metavar="S", help="Wall time in seconds.")
@click.option("--stdin", is_flag=True, help="Pass standard input to the program.")
@json_option("Print one JSON object with the whole result, and nothing else.")
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_id)
@click.argument("command", metavar="-- CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def execute(
    ctx: click.Context,
    /,
    sandbox_id: str,
    command: tuple[str, ...],
    cwd: str,
    user: str,
    env: tuple[str, ...],
    timeout: float | None,
    *,
    stdin: bool,
    as_json: bool,
) -> int:
    """Run a command in a live sandbox and exit with its exit code."""
    words = command[1:] if command[:1] == ("--",) else command
    if words == command and command and command[0].startswith("-"):
        raise BadInput(
            f"{command[0][:60]!r} comes after the id, where the command begins",
            hint="Write options before the id: cellwall exec --timeout 5 ID -- CMD.",
            code="CW-USAGE",
        )
    if not words:
        if as_json:
            raise BadInput("no command was given", hint="Write it after `--`.", code="CW-USAGE")
        click.echo(ctx.get_help(), err=True)
        return REFUSED
    from cellwall.interfaces.cli.execute import show
    from cellwall.interfaces.sdk.remote_host import RemoteHost

    data = read_bounded(0, _MAX_FILE_BYTES) if stdin else None
    if stdin and data is None:
        raise BadInput(
            "standard input is too large",
            hint="Give the data as a file: cellwall cp FILE ID:PATH.",
            code="CW-STDIN-TOO-LARGE",
        )

    async def perform(renderer: RunRenderer) -> Outcome:
        host = await RemoteHost.connect(check_id(sandbox_id, what="sandbox id"))
        return await host.perform(
            RunCommand(words, cwd, user=parse_user(user)),
            timeout=timeout,
            envs=variables(env),
            stdin=data,
            sink=renderer.sink,
        )

    return show(perform, notes=_notes, as_json=as_json)


def _notes(outcome: Outcome) -> list[str]:
    notes = finding_lines(outcome.findings)
    if outcome.limit is not None:
        name = outcome.limit.value.replace("_", " ")
        notes.append(
            f"ended by the {name} limit; set it with `create`, or wall time with --timeout"
        )
    return notes if outcome.error is None else [*notes, error_line(outcome.error)]


@click.command(
    epilog="""\b
Examples:
  cellwall cp data.csv sbx_...:data.csv
  cellwall cp sbx_...:out/plot.png plot.png
"""
)
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("target", metavar="TARGET", type=click.Path())
@json_option("Print one JSON object.")
def cp(source: str, target: str, *, as_json: bool) -> int:
    """Copy one file into or out of a live sandbox; write paths inside as ID:PATH.

    Only content is copied, no permission bits: make a program executable with
    `cellwall exec ID -- chmod +x PATH`. For directories use `create --workspace DIR`.
    """
    from cellwall.interfaces.sdk.blocking import Sandbox

    inside = [_parse_remote(word) for word in (source, target)]
    if (inside[0] is None) == (inside[1] is None):
        raise BadInput(
            "exactly one of the two must be a path inside a sandbox",
            hint="Write ID:PATH for the file inside: cellwall cp FILE sbx_...:PATH.",
            code="CW-USAGE",
        )
    if inside[1] is not None:
        sandbox_id, path = inside[1]
        path = os.path.join(path, os.path.basename(source)) if path.endswith("/") else path
        content = _read_file(source)
        Sandbox.connect(sandbox_id).files.write(path or os.path.basename(source), content)
    else:
        assert inside[0] is not None  # noqa: S101  # one of the two, see above
        sandbox_id, path = inside[0]
        place = _target_file(target, os.path.basename(path))
        content = Sandbox.connect(sandbox_id).files.read_bytes(path)
        _write_file(place, content)
    if as_json:
        print_json({"id": sandbox_id, "bytes": len(content)})
    return 0


def _parse_remote(word: str) -> tuple[str, str] | None:
    """Split `sbx_…:PATH`; None for a path on the host."""
    sandbox_id, colon, path = word.partition(":")
    return (sandbox_id, path) if colon and sandbox_id.startswith("sbx_") else None


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = read_bounded(file.fileno(), _MAX_FILE_BYTES)
    except OSError as error:
        raise BadInput(
            f"{path[:200]!r} cannot be read: {error.strerror}",
            hint="Name a file that you can read; directories are given by create --workspace DIR.",
            code="CW-COPY-FILE",
        ) from None
    if content is None:
        raise BadInput(
            f"{path[:200]!r} is larger than {_MAX_FILE_BYTES} bytes",
            hint="Give its directory as the workspace: cellwall create --workspace DIR:ro.",
            code="CW-COPY-FILE",
        )
    return content


def _target_file(target: str, name: str) -> str:
    """The file itself, or a file in the directory.

    Attack: code inside may have replaced a directory by a link.
    """
    if not os.path.isdir(target):
        return target
    if os.path.islink(target.rstrip("/")):
        raise BadInput(
            f"{target[:200]!r} is a link to a directory",
            hint="Name the target of the link; links are not followed.",
            code="CW-COPY-FILE",
        )
    return os.path.join(target, name)


def _write_file(path: str, content: bytes) -> None:
    """Write atomically: on a full disk the old file stays.

    Attack: code inside may have created a link, a FIFO or a device at the path, so only a regular
    file is replaced.
    """
    temporary = os.path.join(os.path.dirname(path), f".cellwall-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        old = _regular_status(path)
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            try:
                file.write(content)
                if old is not None:
                    with suppress(PermissionError):  # another user's file in a directory of ours
                        os.fchown(file.fileno(), old.st_uid, old.st_gid)
                    os.fchmod(file.fileno(), old.st_mode & 0o777)
                file.flush()
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise BadInput(
            f"{path[:200]!r} cannot be written: {error.strerror}",
            hint="Name a file, or a directory, that you can write; links are not followed.",
            code="CW-COPY-FILE",
        ) from None


def _regular_status(path: str) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return status
