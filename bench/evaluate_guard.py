"""`cellwall guard eval`: how well the guard does on texts of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from cellwall.interfaces.cli.options import json_option, place_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.runtime.guard_eval import Evaluation

_MAX_LINE_BYTES = 64 << 20


@click.group(
    epilog="""\b
Examples:
  cellwall guard eval traffic.jsonl
  cellwall guard eval --plot curve.svg traffic.jsonl
""",
)
def guard() -> None:
    """Measure the content guard. To look at a text, see `cellwall scan`."""


@guard.command(
    name="eval",
    epilog="""\b
Examples:
  cellwall guard eval traffic.jsonl
  cellwall guard eval --plot curve.png --json traffic.jsonl
  cellwall guard eval --kind input - < prompts.jsonl
""",
)
@place_options
@click.option(
    "--kind",
    type=click.Choice(["input", "output"]),
    default="output",
    help="What the texts are: said to a model, or brought back by tools.  [default: output]",
)
@click.option("--plot", metavar="FILE", help="Draw the curve into this PNG or SVG file.")
@json_option("Print one JSON object with all figures.")
@click.argument("dataset", metavar="DATASET.jsonl")
def evaluate(
    dataset: str,
    *,
    profile: str | None,
    config: str | None,
    kind: Literal["input", "output"],
    plot: str | None,
    as_json: bool,
) -> int:
    """Print recall, false alarms, a curve and the worst mistakes on a data set.

    Each line is {"text": "...", "label": 1}: 1 for an attack, 0 for none. A "kind" groups the
    rows in the table. What counts as found is what the guard, as configured, acts on.
    """
    import os  # noqa: PLC0415  # keeps --help quick

    from cellwall.interfaces.cli.telling import print_json, print_text  # noqa: PLC0415  # as above
    from cellwall.runtime.guard_eval import draw, evaluated  # noqa: PLC0415  # as above
    from cellwall.runtime.guarding import guard_for  # noqa: PLC0415  # as above

    found = evaluated(
        guard_for(config=config, profile=profile, environ=os.environ), _lines(dataset), kind=kind
    )
    if plot is not None:
        draw(found, plot)
    if as_json:
        print_json(found.to_json())
    else:
        print_text(_table(found))
    return 0


def _lines(dataset: str) -> Iterator[str]:
    from cellwall.core.errors import BadInput  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.cli.scan import blocks  # noqa: PLC0415  # as above

    rest = b""
    for block in blocks(dataset):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise BadInput("a line of the data set is longer than 64 MiB", hint="Split it.")
        for line in lines:
            yield line.decode("utf-8", "replace")
    yield rest.decode("utf-8", "replace")


def _table(found: Evaluation) -> str:
    from cellwall.core.showing import one_line  # noqa: PLC0415  # keeps --help quick

    lines = [
        f"{found.attacks} attacks, {found.clean} without",
        f"recall               {_percent(found.recall)}",
        f"false alarms         {_percent(found.false_positive_rate)}",
        f"precision            {_percent(found.precision)}",
        "",
        f"{'kind':24} {'label':7} {'flagged':>8} {'of':>7}",
    ]
    for share in found.shares:
        label = "attack" if share.is_attack else "clean"
        kind = one_line(share.kind or "-", most=24)
        lines.append(f"{kind:24} {label:7} {share.flagged:8} {share.total:7}")
    lines += ["", f"{'threshold':>9} {'recall':>8} {'false':>8} {'precision':>9}"]
    step = max(1, len(found.curve) // 12)
    lines += [
        f"{point.threshold:9.3f} {_percent(point.recall):>8} "
        f"{_percent(point.false_positive_rate):>8} {_percent(point.precision):>9}"
        for point in found.curve[::step]
    ]
    for title, errors in (("worst misses", found.misses), ("worst false alarms", found.alarms)):
        if errors:
            lines += ["", title]
        lines += [
            f"  row {error.number}, score {error.score:.2f}: {one_line(error.excerpt, most=100)}"
            for error in errors
        ]
    return "\n".join(lines) + "\n"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"
