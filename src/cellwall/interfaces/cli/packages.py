"""`cellwall packages`: may a package be installed, and why not."""

# ruff: noqa: PLC0415  # late imports: the help of a command needs none of the parts

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli import package_inventory, package_locks
from cellwall.interfaces.cli.options import (
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_json, print_text, say
from cellwall.interfaces.cli.package_install import install

if TYPE_CHECKING:
    from cellwall.admin.packages import FeedState, PackageVerdict
    from cellwall.core.types import Json
    from cellwall.interfaces.cli.options import ConfigOptions

_EXIT_CODES = {"allow": 0, "ask": 3, "deny": 4}
_PROGRESS_STEP = 10_000_000
"""Bytes, where the server does not say how many there are."""


@click.group(
    epilog="""\b
Examples:
  cellwall packages verify requests reqeusts
  cellwall packages verify --ecosystem npm left-pad --json
  cellwall packages install --workspace . requests
  cellwall packages feed update
"""
)
def packages() -> None:
    """Ask whether packages may be installed, and keep the feed of malicious ones up to date.

    `cellwall run --packages pypi -- pip install NAME` applies the same checks in a sandbox.
    """


for command in (install, *package_inventory.COMMANDS):
    packages.add_command(command)


@packages.command(
    epilog="""\b
Examples:
  cellwall packages verify requests
  cellwall packages verify --ecosystem npm @types/node lodash
  cellwall packages verify --offline --json reqeusts

\b
Exit codes:
  0    all may be installed
  3    a person is asked about at least one
  4    at least one is denied
  125  Cellwall refused or failed
"""
)
@click.argument("names", metavar="NAME", nargs=-1, required=True)
@click.option(
    "--ecosystem",
    type=click.Choice(["pypi", "npm"]),
    default="pypi",
    show_default=True,
    help="The registry.",
)
@click.option("--offline", is_flag=True, help="Do not ask the registry: name and feed alone.")
@place_options
@json_option("Print a JSON list.")
def verify(
    names: tuple[str, ...],
    ecosystem: str,
    configured: ConfigOptions,
    *,
    offline: bool,
    as_json: bool,
) -> int:
    """Judge packages by their names, as an installation in a sandbox would."""
    import anyio

    from cellwall.admin import packages as administration

    app = open_configured(configured)

    async def judge() -> list[PackageVerdict]:
        registry = administration.Ecosystem(ecosystem)
        return await administration.verify(app, registry, names, is_offline=offline)

    verdicts = anyio.run(judge)
    if as_json:
        rows: list[Json] = [_as_json(each) for each in verdicts]
        print_json(rows)
    else:
        print_text("".join(map(_lines, verdicts)))
    return max(_EXIT_CODES[each.verdict.word] for each in verdicts)


def _as_json(verdict: PackageVerdict) -> dict[str, Json]:
    from cellwall.admin.packages import risk_of

    risk, decision = risk_of(verdict), verdict.ruling.decision
    steps: list[Json] = [
        {"step": each.step.value, "verdict": each.verdict.word, "code": each.code}
        for each in verdict.reasons
    ]
    return {
        "name": verdict.name,
        "verdict": verdict.verdict.word,
        "reasons": [each.text for each in verdict.reasons],
        "suggestion": verdict.suggestion,
        "version": verdict.version,
        "score": risk.points,
        "risk": risk.line,
        "steps": steps,
        "answered": [each.text for each in verdict.answered],
        "rule": None if decision is None else dict(decision.to_json()),
    }


def _lines(verdict: PackageVerdict) -> str:
    from cellwall.admin.packages import risk_of

    named = f"{verdict.name} {verdict.version}" if verdict.version else verdict.name
    lines = [f"{verdict.verdict.word:5} {named}", f"      {risk_of(verdict).line}"]
    lines += [f"      {each.text}" for each in verdict.reasons]
    if verdict.suggestion:
        lines.append(f"      use instead: {verdict.suggestion}")
    decision = verdict.ruling.decision
    if decision is not None:
        lines.append(f"      by {decision.rule} ({decision.source})")
    return "\n".join(lines) + "\n"


class _FeedProgress:
    """The step and how far it is, on standard error: once for every tenth of it."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress = Progress(quiet=quiet)
        self._shown = ("", -1)

    def __call__(self, step: str, done: int, total: int | None) -> None:
        part = done // _PROGRESS_STEP if total is None else 10 * done // max(total, 1)
        if (step, part) != self._shown:
            self._shown = step, part
            self._progress(f"{step}: {done:,}" + (f" of {total:,}" if total else ""))

    def end(self) -> None:
        self._progress.end()


@packages.group(
    epilog="""\b
Examples:
  cellwall packages feed status
  cellwall packages feed update
  cellwall packages feed import all.zip
"""
)
def feed() -> None:
    """The advisories about malicious and vulnerable packages, in OSV format."""


@feed.command(epilog="\b\nExamples:\n  cellwall packages feed status --json\n")
@place_options
@json_option("Print one JSON object.")
def status(configured: ConfigOptions, *, as_json: bool) -> int:
    """Show the sources, their age and size, and the dates of the shipped data."""
    from cellwall.admin import packages as administration

    app = open_configured(configured)
    sources = administration.feed_sources(app)
    names = {each: administration.popular_names(each) for each in administration.Ecosystem}
    states = {
        each: administration.feed_state(app.settings, app.store.home, each)
        for each in administration.Ecosystem
    }
    snapshots = {each: administration.malicious_snapshot(each) for each in administration.Ecosystem}
    if as_json:
        listed: list[Json] = [
            {
                "source": each.name,
                "updated": each.updated.isoformat(),
                "newest": each.newest,
                "ecosystems": sorted(named.value for named in each.ecosystems),
                "malicious": each.malicious,
                "vulnerabilities": each.vulnerabilities,
            }
            for each in sources
        ]
        shipped: dict[str, Json] = {
            each.value: {"day": str(found.day), "source": found.source, "names": len(found.names)}
            for each, found in names.items()
        }
        feeds: dict[str, Json] = {each.value: _state_json(found) for each, found in states.items()}
        known: dict[str, Json] = {
            each.value: {
                "day": str(found.day),
                "source": found.source,
                "sha256": found.sha256,
                "names": len(found.versions),
                "versions": found.version_count,
            }
            for each, found in snapshots.items()
        }
        print_json({"feeds": feeds, "sources": listed, "names": shipped, "snapshots": known})
        return 0
    lines = [
        f"{each.name}: {each.malicious:,} malicious, {each.vulnerabilities:,} vulnerable, "
        f"updated {each.updated:%Y-%m-%d %H:%M} UTC, newest advisory {each.newest[:10] or '-'}"
        for each in sources
    ] or ["no feed yet: cellwall packages feed update"]
    lines += [
        f"the feed about {each.value} {'is missing' if found.updated is None else 'is old'}: "
        f"packages are answered with {found.without_feed}"
        for each, found in states.items()
        if not found.is_fresh
    ]
    lines += [
        f"shipped snapshot of {each.value}: {found.version_count:,} malicious versions of "
        f"{len(found.versions):,} packages, {found.day} ({found.source})"
        for each, found in snapshots.items()
    ]
    lines += [
        f"names of {each.value}: {len(found.names):,} of {found.day} ({found.source})"
        for each, found in names.items()
    ]
    print_text("\n".join(lines) + "\n")
    return 0


def _state_json(state: FeedState) -> dict[str, Json]:
    return {
        "updated": None if state.updated is None else state.updated.isoformat(),
        "age_s": None if state.age_s is None else round(state.age_s),
        "fresh": state.is_fresh,
        "without_feed": state.without_feed,
    }


@feed.command(epilog="\b\nExamples:\n  cellwall packages feed update\n")
@click.option(
    "--ecosystem",
    "ecosystems",
    type=click.Choice(["pypi", "npm"]),
    multiple=True,
    help="Only this registry.  [default: both]",
)
@place_options
@json_option("Print one JSON object and no progress.")
def update(ecosystems: tuple[str, ...], configured: ConfigOptions, *, as_json: bool) -> int:
    """Download what changed since the last update; an interrupted download goes on."""
    from cellwall.admin import packages as administration

    app = open_configured(configured)
    chosen = [administration.Ecosystem(each) for each in ecosystems or ("pypi", "npm")]
    show = _FeedProgress(quiet=as_json)
    results = administration.update_feed(app, chosen, principal=cli_principal(), progress=show)
    show.end()
    if as_json:
        print_json({each.ecosystem.value: each.advisories for each in results})
    else:
        for each in results:
            kind = "changed" if each.is_incremental else "in all"
            print_text(f"{each.ecosystem.value}: {each.advisories:,} advisories {kind}\n")
    return 0


@feed.command("import", epilog="\b\nExamples:\n  cellwall packages feed import all.zip\n")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@place_options
@json_option("Print one JSON object and no progress.")
def import_archive(path: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Import an archive in OSV format that you downloaded elsewhere."""
    from cellwall.admin import packages as administration

    app = open_configured(configured)
    show = _FeedProgress(quiet=as_json)
    result = administration.import_feed(
        app,
        path,
        principal=cli_principal(),
        progress=lambda done, total: show("import", done, total),
    )
    show.end()
    if result.is_older:
        say("the archive is older than the advisories that it replaced")
    if as_json:
        print_json(
            {
                "advisories": result.advisories,
                "withdrawn": result.withdrawn,
                "unreadable": result.unreadable,
                "older": result.is_older,
            }
        )
    else:
        print_text(f"{result.advisories:,} advisories imported\n")
    return 0


packages.add_command(package_locks.lock)
packages.add_command(package_locks.sync)
