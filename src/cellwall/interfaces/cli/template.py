"""`cellwall template`: the environments that code finds inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.streams import is_terminal, write_all
from cellwall.interfaces.cli.telling import print_json, print_text, say
from cellwall.interfaces.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.core.types import Json
    from cellwall.runtime.templates import Environment

_DEFAULT = "python-data"
_ERASE = "\r\x1b[K"


@click.group(
    epilog="""\b
Examples:
  cellwall template list
  cellwall template build python-data
  cellwall template remove python-data
"""
)
def template() -> None:
    """Build the environments that code can import from: packages, read-only inside."""


@template.command(
    epilog="""\b
Examples:
  cellwall template build
  cellwall template build python-data --json

\b
Exit codes:
  0    the environment is there, built now or earlier
  125  it could not be built; nothing is left of the attempt
"""
)
@click.argument("name", default=_DEFAULT)
@place_options
@json_option("Print one JSON object at the end, and nothing else.")
def build(name: str, profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Download the packages of a template and unpack them; once, for all later runs.

    NAME is python-data if left out: numpy, pandas and matplotlib. Only wheels with hashes that
    Cellwall brings along are taken, from the index that your pip is set up for, and nothing of
    them is executed on the host.
    """
    from cellwall.runtime.templates import Templates  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    templates = Templates(config=config, profile=profile)
    progress = _Progress(quiet=as_json)
    try:
        built = templates.build(name, principal=principal("cli"), on_progress=progress)
    finally:
        progress.end()
    if as_json:
        print_json({**_as_json(name, built), "is_new": built.is_new})
    else:
        verb = "built" if built.is_new else "is already built"
        print_text(f"{name} {verb}: {_summary(built)}\n")
    return 0


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
    """List the templates, and whether they are built for the Python that runs inside."""
    from cellwall.runtime.templates import TEMPLATES, Templates  # noqa: PLC0415  # heavy

    templates = Templates()
    found = {name: templates.find(name) for name in TEMPLATES}
    if as_json:
        print_json({"templates": [_as_json(name, each) for name, each in found.items()]})
        return 0
    for name, each in found.items():
        state = f"built: {_summary(each)}" if each else f"not built: cellwall template build {name}"
        print_text(f"{name}  {TEMPLATES[name]}\n  {state}\n")
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
@click.argument("name")
@place_options
@json_option("Print one JSON object.")
def remove(name: str, profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Remove what was built of a template, for earlier versions of Python and Cellwall as well.

    Sandboxes that use it at this moment lose its packages; end them first.
    """
    from cellwall.runtime.templates import Templates  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    templates = Templates(config=config, profile=profile)
    progress = _Progress(quiet=as_json)
    try:
        removed = templates.remove(name, principal=principal("cli"), on_progress=progress)
    finally:
        progress.end()
    if as_json:
        print_json({"name": name, "removed": removed})
    else:
        print_text(f"{name} removed\n")
    return 0


class _Progress:
    """What is being done, on standard error: one line that changes, or one line each."""

    def __init__(self, *, quiet: bool) -> None:
        self._show: Callable[[str], None] = say
        self._is_shown = False
        if quiet:
            self._show = lambda _: None
        elif is_terminal("stderr"):
            self._show = self._replace

    def __call__(self, text: str) -> None:
        self._show(one_line(text))

    def end(self) -> None:
        if self._is_shown:
            self._write(_ERASE)

    def _replace(self, text: str) -> None:
        self._is_shown = True
        self._write(f"{_ERASE}cellwall: {text}")

    @staticmethod
    def _write(text: str) -> None:
        try:
            write_all(2, text.encode())
        except OSError:
            return  # nobody sees it; the result and the exit code still tell


def _summary(built: Environment) -> str:
    wanted = ("numpy", "pandas", "matplotlib")
    named = ", ".join(f"{name} {version}" for name, version in built.packages if name in wanted)
    return f"Python {built.python}, {named}, {built.size_bytes / 1e6:.0f} MB"


def _as_json(name: str, built: Environment | None) -> dict[str, Json]:
    if built is None:
        return {"name": name, "built": False}
    return {
        "name": name,
        "built": True,
        "python": built.python,
        "size_bytes": built.size_bytes,
        "packages": dict(built.packages),
    }
