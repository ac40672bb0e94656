"""`cellwall redteam`: attack this host's own configuration, and report what holds."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import ConfigOptions, Decorated, json_option, place_options
from cellwall.interfaces.cli.output import Progress, print_json, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cellwall.admin.redteam.suite import Attack, AttackResult, RedteamReport

_WORDS = {"held": "held", "through": "THROUGH", "not-proved": "not proved"}


def _complete_layer(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from cellwall.admin.redteam.suite import LAYERS

    return [layer for layer in LAYERS if layer.startswith(begun)]


def _complete_id(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from cellwall.admin.redteam.suite import all_attacks

    return [attack.id for attack in all_attacks() if attack.id.startswith(begun)]


def _report_option(name: str, what: str) -> Callable[[Decorated], Decorated]:
    return click.option(f"--{name}", metavar="FILE", type=click.Path(), help=what)


@click.command(
    epilog="""\b
Examples:
  cellwall redteam
  cellwall redteam --layer files
  cellwall redteam --only isolation/unshare-user --json
  cellwall redteam --html report.html --sarif report.sarif
  cellwall redteam --explain network/socket-packet

\b
Exit codes:
  0    no attack got through; with --strict, every attack is proved to be held
  1    an attack got through; with --strict, or could not be proved
  125  Cellwall refused or failed; the reason is on standard error
"""
)
@click.option(
    "--layer",
    metavar="L",
    shell_complete=_complete_layer,
    help="Only the attacks of one layer: isolation, limits, files, network, policy, guard, "
    "secrets, packages, audit, service, gateway.",
)
@click.option("--only", metavar="ID", shell_complete=_complete_id, help="Only this attack.")
@click.option("--list", "is_list", is_flag=True, help="List the attacks and try none.")
@click.option(
    "--explain", metavar="ID", shell_complete=_complete_id, help="Explain one attack and try none."
)
@click.option("--strict", is_flag=True, help="Exit code 1 also if an attack cannot be proved.")
@_report_option("junit", "Write the results as JUnit XML.")
@_report_option("sarif", "Write the results as SARIF 2.1.0.")
@_report_option("html", "Write the results as one HTML page.")
@place_options
@json_option("Print one JSON object with all results.")
def redteam(
    *,
    layer: str | None,
    only: str | None,
    is_list: bool,
    explain: str | None,
    strict: bool,
    junit: str | None,
    sarif: str | None,
    html: str | None,
    configured: ConfigOptions,
    as_json: bool,
) -> int:
    """Attack this host's own configuration, and report what holds.

    Every attack has a positive control: the same attempt where it is legitimate, or without the
    protection. If the control fails, the verdict is "not proved", never "held".

    The attacks use the effective configuration, a state folder of their own, and targets that the
    run makes itself: your data, log and vault are not touched. Controls run outside of sandboxes,
    with your rights, most of them in throwaway namespaces.
    """
    from cellwall.admin.redteam.suite import run_attacks, select, to_html, to_junit, to_sarif

    if explain is not None:
        return _explain(select(only=explain)[0], as_json=as_json)
    chosen = select(layer=layer, only=only)
    if is_list:
        return _list(chosen, as_json=as_json)
    forms = ((junit, to_junit), (sarif, to_sarif), (html, to_html))
    wanted = [(path, form) for path, form in forms if path is not None]
    for path, _ in wanted:
        _write(path, "")  # now: a name that cannot be written must not cost minutes
    progress = Progress(quiet=as_json)
    report = run_attacks(
        chosen,
        **configured,
        on_layer=lambda name, done, count: progress(f"{done} of {count} attacks; {name}"),
    )
    progress.end()
    for path, form in wanted:
        _write(path, form(report))
    if as_json:
        print_json(report.to_json())
    else:
        print_text("".join(f"{line}\n" for line in _render(report)))
    is_proved = all(result.verdict.value == "held" for result in report.results)
    return 1 if report.is_breached or (strict and not is_proved) else 0


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(
            f"{path[:200]!r} cannot be written",
            hint="Name a file in a folder that exists and that you may write to.",
            code="CW-OUTPUT-UNWRITABLE",
            detail=str(error),
        ) from None


def _explain(attack: Attack, *, as_json: bool) -> int:
    from cellwall.admin.redteam.suite import explanation

    if as_json:
        print_json({**attack.to_json(), "explanation": explanation(attack)})
        return 0
    references = ", ".join((*attack.owasp, *attack.atlas)) or "none"
    print_text(
        f"{attack.id}: {attack.title}\n\n"
        f"Layer:        {attack.layer}\n"
        f"Requirement:  {attack.requirement}\n"
        f"Stopped by:   {attack.wall}\n"
        f"Control:      {attack.control}\n"
        f"References:   {references}\n\n"
        f"{explanation(attack)}\n"
    )
    return 0


def _list(chosen: Sequence[Attack], *, as_json: bool) -> int:
    if as_json:
        print_json({"attacks": [attack.to_json() for attack in chosen]})
    else:
        width = max((len(attack.id) for attack in chosen), default=0)
        print_text("".join(f"{attack.id:{width}}  {attack.title}\n" for attack in chosen))
    return 0


def _render(report: RedteamReport) -> Iterator[str]:
    for layer, results in report.by_layer().items():
        held = sum(result.verdict.value == "held" for result in results)
        yield f"{layer}: {held} of {len(results)} held"
        for result in results:
            if result.verdict.value != "held":
                yield from _describe(result)
    counts = ", ".join(
        f"{sum(result.verdict.value == name for result in report.results)} {word}"
        for name, word in _WORDS.items()
    )
    yield f"{len(report.results)} attacks in {report.took_s:.0f} s: {counts}."
    unproved = sum(result.verdict.value == "not-proved" for result in report.results)
    if unproved:
        yield f"{unproved} not proved: nothing is known about these here; --strict fails for them."
    if report.is_breached:
        yield "An attack got through. `cellwall redteam --explain ID` tells what it does."


def _describe(result: AttackResult) -> Iterator[str]:
    attack = result.attack
    yield f"  {_WORDS[result.verdict.value]:10}  {one_line(attack.id)}: {one_line(result.reason)}"
    if result.verdict.value == "through":
        yield f"              expected to stop it: {one_line(attack.wall)}; {attack.requirement}"
