"""Measures the guard, as configured, on a JSONL data set.

    .venv/bin/python bench/evaluate_guard.py traffic.jsonl
    .venv/bin/python bench/evaluate_guard.py --plot curve.svg --json traffic.jsonl
    .venv/bin/python bench/evaluate_guard.py --kind input - < prompts.jsonl

Each line is {"text": "...", "label": 1}: 1 for an attack, 0 for none. A "kind" groups the rows in
the table. A text counts as flagged when the guard acts on it: neutralise, ask or block.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from evaluation import Evaluation, Judgement, measure, rows

from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.core.showing import one_line
from cellwall.guard.report import Kind, TextTreatment
from cellwall.guard.service import GuardService
from cellwall.runtime.guarding import guard_for

_FORMATS = {".png": "png", ".svg": "svg"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", metavar="DATASET.jsonl", help="a file, or - for standard input")
    parser.add_argument("--kind", choices=("input", "output"), default="output")
    parser.add_argument("--plot", metavar="FILE", help="draw the curve into this PNG or SVG file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", help="configuration file")
    parser.add_argument("--profile", help="configuration profile")
    options = parser.parse_args(arguments)
    try:
        guard = guard_for(config=options.config, profile=options.profile, environ=dict(os.environ))
        with (
            nullcontext(sys.stdin)
            if options.dataset == "-"
            else open(options.dataset, encoding="utf-8", errors="replace")
        ) as lines:
            result = evaluate(guard, lines, kind=options.kind)
        if options.plot is not None:
            draw(result, options.plot)
    except (CellwallError, OSError) as error:
        print(f"{error} {getattr(error, 'hint', '')}".rstrip(), file=sys.stderr)
        return 2
    print(json.dumps(result.to_json()) if options.json else render_table(result))
    return 0


def evaluate(guard: GuardService, lines: Iterable[str], *, kind: Kind) -> Evaluation:
    """Scan every row with the guard's own settings."""

    def judge(text: str) -> Judgement:
        report = guard.scanner.scan(text, kind=kind)
        return Judgement(report.score, report.verdict.rank >= TextTreatment.NEUTRALISE.rank)

    result = measure(rows(lines), judge)
    if not result.attacks and not result.clean:
        raise BadInput(
            "the data set is empty", hint='Write lines such as {"text": "...", "label": 0}.'
        )
    return result


def draw(result: Evaluation, path: str) -> None:
    """Plot recall over the false-positive rate, and mark the configured operating point."""
    file_format = _FORMATS.get(os.path.splitext(path)[1].lower())
    if file_format is None:
        raise BadInput("a curve is drawn as PNG or SVG", hint="Name a file that ends with .svg.")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # slow to load, for --plot alone
    except ImportError:
        raise ConfigError(
            "curves need matplotlib", hint="Install matplotlib, or leave --plot out."
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    points = [
        (point.false_positive_rate, point.recall)
        for point in result.curve
        if point.false_positive_rate is not None and point.recall is not None
    ]
    axes.plot([100 * x for x, _ in points], [100 * y for _, y in points], drawstyle="steps-post")
    if result.recall is not None and result.false_positive_rate is not None:
        axes.plot(100 * result.false_positive_rate, 100 * result.recall, "o", label="as configured")
        axes.legend(loc="lower right")
    axes.set(
        xlabel="false positives (% of texts without an attack)",
        ylabel="recall (% of attacks)",
        xlim=(-0.5, None),
        ylim=(0, 101),
        title=f"{result.attacks} attacks, {result.clean} without",
    )
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, format=file_format)


def render_table(result: Evaluation) -> str:
    lines = [
        f"{result.attacks} attacks, {result.clean} without",
        f"recall               {_percent(result.recall)}",
        f"false positives      {_percent(result.false_positive_rate)}",
        f"precision            {_percent(result.precision)}",
        "",
        f"{'kind':24} {'label':7} {'flagged':>8} {'of':>7}",
    ]
    for share in result.shares:
        label = "attack" if share.is_attack else "clean"
        kind = one_line(share.kind or "-", most=24)
        lines.append(f"{kind:24} {label:7} {share.flagged:8} {share.total:7}")
    lines += ["", f"{'threshold':>9} {'recall':>8} {'false':>8} {'precision':>9}"]
    step = max(1, len(result.curve) // 12)
    lines += [
        f"{point.threshold:9.3f} {_percent(point.recall):>8} "
        f"{_percent(point.false_positive_rate):>8} {_percent(point.precision):>9}"
        for point in result.curve[::step]
    ]
    for title, errors in (("worst misses", result.misses), ("worst alarms", result.alarms)):
        if errors:
            lines += ["", title]
        lines += [
            f"  row {error.number}, score {error.score:.2f}: {one_line(error.excerpt, most=100)}"
            for error in errors
        ]
    return "\n".join(lines)


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
