"""`cellwall packages audit | sbom | why`: the packages of a lock, a template or a sandbox."""

# ruff: noqa: PLC0415  # late imports: the help of a command needs none of the parts

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.interfaces.cli.options import (
    json_option,
    open_configured,
    open_readable,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_bytes, print_json, print_result, say
from cellwall.interfaces.cli.terminal_input import Passphrases
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.package_inventory import AuditedPackage, PackageEvent, PackageReport
    from cellwall.core.types import Json
    from cellwall.interfaces.cli.options import ConfigOptions

EXIT_CODES = {"allow": 0, "ask": 3, "deny": 4}
_VERDICT_EXITS = """
\b
Exit codes:
  0    allow
  3    a person is asked about at least one
  4    at least one is denied
  125  Cellwall refused or failed
"""
_offline_option = click.option(
    "--offline", is_flag=True, help="Do not ask the registries: name, rules and feed alone."
)
_template_option = click.option("--template", metavar="NAME", help="The packages of a template.")


@click.command(
    epilog="""\b
Examples:
  cellwall packages audit uv.lock package-lock.json
  cellwall packages audit --offline --json requirements.txt
  cellwall packages audit --sandbox sbx_...
"""
    + _VERDICT_EXITS
)
@click.argument("files", metavar="FILE", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@_template_option
@click.option("--sandbox", metavar="ID", help="The packages that a sandbox got (sbx_...).")
@_offline_option
@place_options
@json_option("Print one JSON object with every entry.")
def audit(
    files: tuple[str, ...],
    template: str | None,
    sandbox: str | None,
    configured: ConfigOptions,
    *,
    offline: bool,
    as_json: bool,
) -> int:
    """Judge each package of lock files by name, version and hash.

    FILE is a pylock.toml, uv.lock, package-lock.json or requirements.txt. An entry with a known
    vulnerability is asked about, with the version that fixes it; a malicious package, and a hash
    that is not that of the registry, are denied.
    """
    import anyio

    from cellwall.admin import package_inventory as inventory

    _one_source(files, template, sandbox)
    app = open_configured(configured)
    locks = {os.path.basename(path): inventory.lock_of_file(path) for path in files}
    if template is not None:
        locks[template] = inventory.lock_of_template(template)
    if sandbox is not None:
        locks[sandbox] = inventory.lock_of_sandbox(sandbox, ask=Passphrases(None))
    progress = Progress(quiet=as_json)
    audited: list[tuple[str, AuditedPackage]] = []
    for source, lock in locks.items():

        async def judge(source: str = source, lock: inventory.Lock = lock) -> None:
            found = await inventory.audit_lock(
                app,
                lock,
                is_offline=offline,
                needs_hashes=bool(files),
                on_judged=lambda done, total: progress(f"{source}: {done:,} of {total:,} judged"),
            )
            audited.extend((source, each) for each in found)

        anyio.run(judge)
    progress.end()
    counts = {word: sum(each.verdict.word == word for _, each in audited) for word in EXIT_CODES}
    rows: list[Json] = [_audited_json(source, each) for source, each in audited]
    print_result(
        {"packages": rows, "counts": dict(counts)}, _audit_text(audited, counts), as_json=as_json
    )
    return max((EXIT_CODES[each.verdict.word] for _, each in audited), default=0)


def _one_source(*sources: object) -> None:
    if sum(map(bool, sources)) != 1:
        raise BadInput(
            "name one source of packages",
            hint="Give lock files, or one of the options; see --help.",
            code="CW-USAGE",
        )


def _audited_json(source: str, audited: AuditedPackage) -> dict[str, Json]:
    package = audited.package
    return {
        "source": source,
        "ecosystem": package.ecosystem.value,
        "name": package.name,
        "version": package.version,
        "verdict": audited.verdict.word,
        "reasons": [each.text for each in audited.reasons],
        "codes": [each.code for each in audited.reasons],
        "advisories": [
            {"id": each.id, "malicious": each.is_malicious, "fixed": each.fixed}
            for each in audited.advisories
        ],
        "suggestion": audited.suggestion,
    }


def _audit_text(audited: list[tuple[str, AuditedPackage]], counts: dict[str, int]) -> str:
    """The entries with a problem of their own; a missing feed, once for all entries."""
    listed = [_audited_lines(source, each) for source, each in audited]
    feed = dict.fromkeys(
        reason.text for _, each in audited for reason in each.reasons if reason.code == "feed"
    )
    summary = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    total = f"{len(audited):,} packages" + (f": {summary}" if summary else "")
    lines = [*chain.from_iterable(listed), *feed, total]
    return "".join(f"{one_line(each)}\n" for each in lines)


def _audited_lines(source: str, audited: AuditedPackage) -> list[str]:
    own = [each for each in audited.reasons if each.code != "feed"]
    if all(each.verdict.word == "allow" for each in own):
        return []
    package = audited.package
    version = package.version or "(any version)"
    lines = [f"{audited.verdict.word:5} {package.name} {version}  ({source})"]
    lines += [f"      {each.text}" for each in own]
    lines += [
        f"      {each.id}: fixed in {each.fixed}" for each in audited.advisories if each.fixed
    ]
    return [*lines, f"      use instead: {audited.suggestion}"] if audited.suggestion else lines


@click.command(
    epilog="""\b
Examples:
  cellwall packages sbom uv.lock -o sbom.json
  cellwall packages sbom --action act_...
  cellwall packages sbom --session sbx_... | jq '.components[].purl'
"""
)
@click.argument(
    "file", metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False)
)
@_template_option
@click.option("--action", metavar="ID", help="The packages that an action got (act_...).")
@click.option("--session", metavar="ID", help="The packages that a sandbox got (sbx_...).")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    help="Write to this file instead of standard output.",
)
def sbom(
    file: str | None,
    template: str | None,
    action: str | None,
    session: str | None,
    output: str | None,
) -> int:
    """Print a CycloneDX 1.6 SBOM of a lock file, a template, an action or a sandbox.

    The packages of an action or a sandbox carry the id of the action that got them and of the
    audit record that says so.
    """
    from cellwall.admin import package_inventory as inventory

    _one_source(file, template, action, session)
    if file is not None:
        lock = inventory.lock_of_file(file)
        document = inventory.sbom_of_lock(lock, subject=os.path.basename(file))
    elif template is not None:
        document = inventory.sbom_of_lock(inventory.lock_of_template(template), subject=template)
    else:
        document = inventory.sbom_of_record(action or session or "", ask=Passphrases(None))
    if output is None:
        print_bytes(document + b"\n")
        return 0
    try:
        with open(output, "wb") as written:
            written.write(document + b"\n")
    except OSError as error:
        raise CellwallError(
            f"the SBOM cannot be written: {os.strerror(error.errno or 0)}",
            hint="Check the path and the disk.",
            code="CW-OUTPUT-UNWRITABLE",
        ) from None
    say(f"wrote {one_line(output)}")
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall packages why idna --lock uv.lock
  cellwall packages why --ecosystem npm ms --lock package-lock.json --json
  cellwall packages why reqeusts --offline
"""
    + _VERDICT_EXITS
)
@click.argument("name", metavar="NAME")
@click.option(
    "--lock",
    "lock_file",
    type=click.Path(exists=True, dir_okay=False),
    help="The lock file in which the package is.",
)
@click.option(
    "--ecosystem",
    type=click.Choice(["pypi", "npm"]),
    default="pypi",
    show_default=True,
    help="The registry.",
)
@_offline_option
@place_options
@json_option("Print one JSON object.")
def why(
    name: str,
    lock_file: str | None,
    ecosystem: str,
    configured: ConfigOptions,
    *,
    offline: bool,
    as_json: bool,
) -> int:
    """Tell why a package is installed or refused.

    The path from a direct requirement in the lock, the newest actions of the audit log that got
    the package or were refused, with the reasons, and the verdict of today.
    """
    import anyio

    from cellwall.admin import package_inventory as inventory

    app = open_readable(configured, None)
    lock = None if lock_file is None else inventory.lock_of_file(lock_file)

    async def explain() -> PackageReport:
        registry = inventory.Ecosystem(ecosystem)
        return await inventory.explain(app, registry, name, lock, is_offline=offline)

    report = anyio.run(explain)
    if as_json:
        print_json(_report_json(report))
    else:
        lines = [*_lock_lines(report, lock_file), *_event_lines(report), *_verdict_lines(report)]
        print_bytes("".join(f"{one_line(each)}\n" for each in lines).encode())
    return EXIT_CODES[report.verdict.verdict.word]


def _report_json(report: PackageReport) -> dict[str, Json]:
    return {
        "name": report.name,
        "ecosystem": report.ecosystem.value,
        "locked": report.is_locked,
        "path": [{"name": each.name, "version": each.version} for each in report.path],
        "actions": [_event_json(each) for each in report.events],
        "verdict": report.verdict.verdict.word,
        "reasons": [each.text for each in report.verdict.reasons],
        "suggestion": report.verdict.suggestion,
    }


def _event_json(event: PackageEvent) -> dict[str, Json]:
    return {
        "action": event.action_id,
        "audit_id": event.audit_id,
        "time": event.time,
        "result": "refused" if event.is_refusal else "installed",
        "version": event.version,
        "command": event.command,
        "reasons": list(event.reasons),
        "suggestion": event.suggestion,
    }


def _lock_lines(report: PackageReport, lock_file: str | None) -> list[str]:
    if lock_file is None:
        return []
    place = os.path.basename(lock_file)
    if not report.is_locked:
        return [f"{place} does not have {report.name}"]
    if not report.has_graph:
        return [f"{place} has {report.name}, and does not say which package needs it"]
    if not report.path:
        return [f"{place} has {report.name}, and no requirement leads to it"]
    steps = " -> ".join(f"{each.name} {each.version or ''}".rstrip() for each in report.path)
    return [f"{place}: {steps}"]


def _event_lines(report: PackageReport) -> list[str]:
    lines = []
    for event in report.events:
        what = "refused" if event.is_refusal else "installed"
        version = f" {event.version}" if event.version else ""
        lines.append(f"{event.time} {what}{version} by {event.action_id}: {event.command}")
        lines += [f"      {each}" for each in event.reasons]
        if event.suggestion:
            lines.append(f"      use instead: {event.suggestion}")
    return lines or [f"the audit log has no action that asked for {report.name}"]


def _verdict_lines(report: PackageReport) -> list[str]:
    verdict = report.verdict
    lines = [f"today: {verdict.verdict.word}", *(f"      {each.text}" for each in verdict.reasons)]
    if verdict.suggestion:
        lines.append(f"      use instead: {verdict.suggestion}")
    return lines


COMMANDS = (audit, sbom, why)
