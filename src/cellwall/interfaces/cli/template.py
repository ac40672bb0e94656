"""`cellwall template`: Python environments for sandboxes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.packages import (
    MAX_FILE_BYTES,
    package_of,
    parse_request,
    parse_requirements_file,
)
from cellwall.interfaces.cli.options import (
    complete_template,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_json, print_text
from cellwall.interfaces.sandbox_options import read_bounded

if TYPE_CHECKING:
    from cellwall.admin.templates import Environment
    from cellwall.core.types import Json

_DEFAULT = "python-data"


@click.group(
    epilog="""\b
Examples:
  cellwall template list
  cellwall template build python-data
  cellwall template build web --with requests
  cellwall template remove python-data
"""
)
def template() -> None:
    """Build environments of Python packages, which are read-only in a sandbox."""


@template.command(
    epilog="""\b
Examples:
  cellwall template build
  cellwall template build web --with requests --with 'beautifulsoup4<5'
  cellwall template build web --requirements requirements.txt
  cellwall template build --with requests
  cellwall template build python-data --json

\b
Exit codes:
  0    the environment exists, built now or earlier
  125  the build failed; nothing is left of it
"""
)
@click.argument("name", required=False, shell_complete=complete_template)
@click.option(
    "--with",
    "packages",
    metavar="PACKAGE",
    multiple=True,
    help="Package of this template: requests, 'pandas<3', 'uvicorn[standard]'; may be repeated.",
)
@click.option(
    "--requirements",
    metavar="FILE",
    type=click.Path(),
    help="File with one package per line.",
)
@place_options
@json_option("Print one JSON object at the end, and nothing else.")
def build(
    name: str | None,
    packages: tuple[str, ...],
    requirements: str | None,
    profile: str | None,
    config: str | None,
    *,
    as_json: bool,
) -> int:
    """Download and unpack the packages of a template, once for all later runs.

    The default NAME is python-data: numpy, pandas and matplotlib, pinned by hashes that ship with
    Cellwall. With packages, NAME is a template of your own, which keeps their versions until it is
    removed; without NAME it is derived from the packages, as for `--package`. Only wheels are used,
    from the index that your pip is configured for, and none of their code runs on the host.
    """
    from cellwall.admin.templates import Templates  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    asked = parse_request([*packages, *_listed_in(requirements)])
    if requirements is not None and not asked:
        raise BadInput("the requirements file names no package", code="CW-BAD-PACKAGE")
    templates = Templates(config=config, profile=profile)
    name = name or (templates.name_of(asked) if asked else _DEFAULT)
    progress = Progress(quiet=as_json)
    try:
        built = templates.build(
            name, principal=principal("cli"), on_progress=progress, packages=asked
        )
    finally:
        progress.end()
    requested = templates.requested(name)
    if as_json:
        print_json({**_as_json(name, built, requested), "is_new": built.is_new})
    else:
        verb = "built" if built.is_new else "is already built"
        print_text(f"{name} {verb}: {_summary(built, requested)}\n")
        print_text(f"Use it: cellwall code --template {name} -c CODE\n")
    return 0


def _listed_in(file: str | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        # O_NONBLOCK: opening a FIFO would wait for a writer for ever.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            content = read_bounded(opened.fileno(), MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "invalid path"
        raise BadInput(
            f"the requirements file cannot be read: {told}", code="CW-BAD-PACKAGE"
        ) from None
    if content is None:
        raise BadInput("the requirements file is too large", code="CW-BAD-PACKAGE")
    return parse_requirements_file(content)


@template.command(
    "list",
    epilog="""\b
Examples:
  cellwall template list
  cellwall template list --json | jq '.templates[] | select(.built)'
""",
)
@json_option("Print one JSON object with all packages.")
def list_(*, as_json: bool) -> int:
    """List the templates, and whether they are built for the Python of the sandbox."""
    from cellwall.admin.templates import SHIPPED, Templates  # noqa: PLC0415  # heavy

    templates = Templates()
    found: dict[str, tuple[Environment | None, tuple[str, ...]]] = {}
    damaged: dict[str, CellwallError] = {}
    for name in templates.names():
        try:
            found[name] = templates.find(name), templates.requested(name)
        except CellwallError as error:  # one damaged template must not hide the others
            damaged[name] = error
    if as_json:
        rows = [_as_json(name, *each) for name, each in found.items()]
        rows += [
            {"name": name, "built": False, "damaged": reason.message, "hint": reason.hint}
            for name, reason in damaged.items()
        ]
        print_json({"templates": list(rows)})
        return 0
    for name, (built, asked) in found.items():
        state = f"not built: cellwall template build {name}"
        if built is not None:
            state = f"built: {_summary(built, asked)}"
        print_text(f"{name}  {SHIPPED.get(name) or ', '.join(asked)}\n  {state}\n")
    for name, reason in damaged.items():
        print_text(f"{name}  damaged: {reason.message}\n  {reason.hint}\n")
    return 0


@template.command(
    epilog="""\b
Examples:
  cellwall template remove python-data

\b
Exit codes:
  0    removed
  125  there is no such template, or it is not built
"""
)
@click.argument("name", shell_complete=complete_template)
@place_options
@json_option("Print one JSON object.")
def remove(name: str, profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Remove a template's builds, also those for earlier versions of Python and Cellwall.

    A template of your own is removed entirely.
    Sandboxes that use it at this moment lose its packages; end them first.
    """
    from cellwall.admin.templates import Templates  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    templates = Templates(config=config, profile=profile)
    progress = Progress(quiet=as_json)
    try:
        removed = templates.remove(name, principal=principal("cli"), on_progress=progress)
    finally:
        progress.end()
    if as_json:
        print_json({"name": name, "removed": removed})
    else:
        print_text(f"{name} removed\n")
    return 0


def _summary(built: Environment, requested: tuple[str, ...]) -> str:
    wanted = {package_of(each).name for each in requested} or {"numpy", "pandas", "matplotlib"}
    named = [f"{name} {version}" for name, version in built.packages if name in wanted]
    others = len(built.packages) - len(named)
    listed = ", ".join(named) + (f" and {others} more" if others else "")
    return f"Python {built.python}, {listed}, {built.size_bytes / 1e6:.0f} MB"


def _as_json(name: str, built: Environment | None, requested: tuple[str, ...]) -> dict[str, Json]:
    told: dict[str, Json] = {"name": name, "built": built is not None}
    if requested:
        told["requested"] = list(requested)
    if built is not None:
        told["python"] = built.python
        told["size_bytes"] = built.size_bytes
        told["packages"] = dict(built.packages)
    return told
