"""`cellwall policy blast-radius`: what code can and cannot do here, probed, and compared."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_result
from cellwall.interfaces.terminal import is_terminal

if TYPE_CHECKING:
    from cellwall.admin.blast_radius import BlastRadius, ProbeResult


@click.command(
    name="blast-radius",
    epilog="""\b
Examples:
  cellwall policy blast-radius
  cellwall policy blast-radius --probe
  cellwall policy blast-radius --profile paranoid --json
  cellwall policy blast-radius --diff production development
  cellwall policy blast-radius --diff old.toml new.toml

\b
Exit codes:
  0    printed; with --probe, nothing is contradicted; with --diff, nothing opens
  1    with --probe, a line is contradicted; with --diff, something opens
  125  refused or failed; the reason is on standard error
""",
)
@click.option(
    "--probe", "is_probed", is_flag=True, help="Confirm each line by trying it in sandboxes."
)
@click.option(
    "--diff",
    "compared",
    nargs=2,
    metavar="A B",
    help="Compare two configuration files or profiles: what B opens and closes.",
)
@place_options
@json_option("Print one JSON object.")
def blast_radius(
    configured: ConfigOptions,
    *,
    is_probed: bool,
    compared: tuple[str, str] | None,
    as_json: bool,
) -> int:
    """Show what code can read, write, execute, reach, spend and keep here, and what it cannot.

    Computed from the configuration, and from the rules that apply in this folder. With --probe,
    what is said to be possible is done and what is said to be impossible is tried, in sandboxes
    like any other, recorded like any other; each line is then confirmed, contradicted, or not
    probed with the reason. No file of yours is touched: the probes make their own, and servers of
    their own on this machine. They connect to allowed hosts and configured registries. Limits of
    time are waited for, up to 60 seconds.

    With --diff, A and B are configuration files, or names of profiles; write ./production for a
    file of that name. The exit code is 1 if B opens something. Settings that differ and have no
    line, such as those of the guard and of the service, are listed as changed: judge them yourself.
    """
    if compared is not None:
        _refuse_mixed(configured, is_probed=is_probed)
        return _compare(*compared, as_json=as_json)
    if is_probed:
        return _probe(configured, as_json=as_json)
    radius = _radius(configured)
    print_result(radius.to_json(), radius.to_text(), as_json=as_json)
    return 0


def _refuse_mixed(configured: ConfigOptions, *, is_probed: bool) -> None:
    if is_probed or configured["config"] is not None or configured["profile"] is not None:
        raise BadInput(
            "--diff stands alone: it excludes --probe, --config and --profile",
            hint="Name the two configurations: --diff old.toml new.toml.",
            code="CW-USAGE",
        )


def _radius(configured: ConfigOptions) -> BlastRadius:
    from cellwall.admin.blast_radius import configured_radius
    from cellwall.config.load import load_settings

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    return configured_radius(settings, environ=os.environ)


def _compare(before: str, after: str, *, as_json: bool) -> int:
    from cellwall.admin.blast_radius import configured_radius, named_settings
    from cellwall.admin.radius_changes import compare, compare_settings

    old, new = (named_settings(name, environ=os.environ) for name in (before, after))
    lines = compare(*(configured_radius(each, environ=os.environ) for each in (old, new)))
    diff = compare_settings(old, new, lines)
    print_result(diff.to_json(), diff.to_text(), as_json=as_json)
    return 1 if diff.opens else 0


def _probe(configured: ConfigOptions, *, as_json: bool) -> int:
    import anyio

    from cellwall.admin.blast_radius import ProbeState, configured_radius
    from cellwall.admin.blast_radius_probe import probe_radius

    app, progress = (
        open_configured(configured),
        Progress(quiet=as_json or not is_terminal("stderr")),
    )
    try:
        radius = configured_radius(app.settings, environ=os.environ)

        async def run() -> dict[str, ProbeResult]:
            return await probe_radius(app, radius, who=cli_principal(), on_progress=progress)

        probed = anyio.run(run)
    finally:
        progress.end()
        app.close()
    print_result(radius.to_json(probed), radius.to_text(probed), as_json=as_json)
    is_wrong = any(each.state is ProbeState.CONTRADICTED for each in probed.values())
    return 1 if is_wrong else 0
