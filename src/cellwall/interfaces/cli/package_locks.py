"""`cellwall packages lock | sync`: lock files, and workspaces installed from them."""

# ruff: noqa: PLC0415  # late imports: the help of a command needs none of the parts

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress

import click

from cellwall.core.errors import BadInput
from cellwall.core.packages import MAX_FILE_BYTES, Package, parse_requirements_file
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_json, print_text
from cellwall.interfaces.sandbox_options import read_bounded

_MAX_LOCK_BYTES = 8 * 1024 * 1024
_STDOUT = "-"

ecosystem_option = click.option(
    "--ecosystem",
    type=click.Choice(["pypi", "npm"]),
    default="pypi",
    show_default=True,
    help="The registry.",
)


@click.command(
    epilog="""\b
Examples:
  cellwall packages lock requests 'pandas<3' -o pylock.toml
  cellwall packages lock -r requirements.txt -o pylock.toml
  cellwall packages lock --ecosystem npm lodash@^4 -o package-lock.json

\b
Exit codes:
  0    the lock was written
  125  a package was refused or not found; no file was written
"""
)
@click.argument("requirements", metavar="[REQUIREMENT]...", nargs=-1)
@click.option(
    "-r",
    "--requirements",
    "file",
    metavar="FILE",
    type=click.Path(),
    help="File with one package per line; for npm a package.json.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    default=_STDOUT,
    help="Lock file to write.  [default: standard output]",
)
@ecosystem_option
@place_options
@json_option("Print one JSON object with the packages, and no progress.")
def lock(
    requirements: tuple[str, ...],
    file: str | None,
    output: str,
    ecosystem: str,
    configured: ConfigOptions,
    *,
    as_json: bool,
) -> int:
    """Resolve packages to a lock file with the hash of each file.

    uv writes a pylock.toml, npm a package-lock.json. Both run in a sandbox, and see only the
    packages and versions that may be installed.
    """
    from cellwall.admin.package_locks import Ecosystem, PackageLocks
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    wanted = [*requirements, *_listed_in(file, ecosystem)]
    if not wanted:
        raise BadInput(
            "no package was named",
            hint="For example: cellwall packages lock requests -o pylock.toml",
            code="CW-BAD-PACKAGE",
        )
    who, progress = cli_principal(), Progress(quiet=as_json)
    approver = TerminalApprover(who, hush=progress.hushed)
    try:
        locks = PackageLocks(who, ask=approver, **configured)
        resolved = locks.resolve(Ecosystem(ecosystem), wanted, on_progress=progress)
    finally:
        progress.end()
    text = resolved.content.decode("utf-8", "replace")
    if output != _STDOUT:
        _write_file(output, resolved.content)
    if as_json:
        where: dict[str, Json] = {"lock": text} if output == _STDOUT else {"file": output}
        print_json({"ecosystem": ecosystem, "packages": _versions(resolved.packages), **where})
    elif output == _STDOUT:
        print_text(text)
    else:
        print_text(f"{output}: {len(resolved.packages)} locked\n")
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall packages sync pylock.toml --workspace ~/app
  cellwall packages sync package-lock.json --workspace ~/site --json

\b
Exit codes:
  0    the workspace has the packages of the lock
  125  a package was refused, or its file is not the one in the lock
"""
)
@click.argument("file", metavar="[LOCK]", default="pylock.toml", type=click.Path())
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(),
    required=True,
    help="Directory that gets .venv or node_modules.",
)
@place_options
@json_option("Print one JSON object with the packages, and no progress.")
def sync(file: str, workspace: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Install exactly the packages of a lock file into a workspace, inside a sandbox.

    A pylock.toml goes into DIR/.venv, a package-lock.json into DIR/node_modules. Files come from
    the configured registry alone, by their hashes; no install script and no build runs.
    """
    from cellwall.admin.package_locks import Ecosystem, PackageLocks
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    ecosystem = Ecosystem.NPM if file.endswith(".json") else Ecosystem.PYPI
    content = read_lock(file)
    who, progress = cli_principal(), Progress(quiet=as_json)
    approver = TerminalApprover(who, hush=progress.hushed)
    try:
        locks = PackageLocks(who, ask=approver, **configured)
        place = os.path.abspath(workspace)
        packages = locks.sync(ecosystem, content, place, on_progress=progress)
    finally:
        progress.end()
    if as_json:
        print_json(
            {
                "ecosystem": ecosystem.value,
                "workspace": workspace,
                "packages": _versions(packages),
            }
        )
    else:
        print_text(f"{workspace}: {len(packages)} installed from {file}\n")
    return 0


def read_lock(file: str) -> bytes:
    """The content of a lock file that the user named."""
    return read_named_file(file, _MAX_LOCK_BYTES, what="lock file", code="CW-BAD-LOCK")


def read_named_file(file: str, max_bytes: int, *, what: str, code: str) -> bytes:
    """The content of a file that the user named, if it is not larger."""
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer for ever.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            content = read_bounded(opened.fileno(), max_bytes)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "invalid path"
        raise BadInput(
            f"the {what} cannot be read: {reason}", hint="Check the path.", code=code
        ) from None
    if content is None:
        raise BadInput(
            f"the {what} is too large", hint=f"At most {max_bytes:,} bytes are read.", code=code
        )
    return content


def _listed_in(file: str | None, ecosystem: str) -> tuple[str, ...]:
    if file is None:
        return ()
    content = read_named_file(file, MAX_FILE_BYTES, what="requirements file", code="CW-BAD-PACKAGE")
    if ecosystem == "pypi":
        return parse_requirements_file(content)
    try:
        wanted = json.loads(content).get("dependencies", {})
        return tuple(f"{name}@{version}" for name, version in wanted.items())
    except (ValueError, AttributeError, RecursionError):
        raise BadInput(
            "the file is not a package.json",
            hint="Name a JSON file with an object of dependencies.",
            code="CW-BAD-PACKAGE",
        ) from None


def _versions(packages: tuple[Package, ...]) -> dict[str, Json]:
    return {each.name: each.version for each in packages}


def _write_file(path: str, content: bytes) -> None:
    """Replace a file atomically: a reader never sees half a lock."""
    beside = f"{path}.{secrets.token_hex(4)}"
    try:
        with open(beside, "xb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)
        raise BadInput(
            f"the lock file cannot be written: {error.strerror}",
            hint="Name a file in a folder where you may write.",
            code="CW-BAD-LOCK",
        ) from None
