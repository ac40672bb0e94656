"""The guard, measured on a data set; the curve as a picture."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cellwall.core.errors import BadInput, ConfigError
from cellwall.guard.evaluate import Evaluation, Judgement, measure, rows
from cellwall.guard.report import Kind, Treatment

if TYPE_CHECKING:
    from cellwall.guard.service import Guard

__all__ = ["Evaluation", "draw", "evaluated"]

_FORMS = {".png": "png", ".svg": "svg"}


def evaluated(guard: Guard, lines: Iterable[str], *, kind: Kind) -> Evaluation:
    """What counts as found is what is acted on."""

    def judge(text: str) -> Judgement:
        report = guard.scanner.scan(text, kind=kind)
        return Judgement(report.score, report.verdict.rank >= Treatment.NEUTRALISE.rank)

    found = measure(rows(lines), judge)
    if not found.attacks and not found.clean:
        raise BadInput(
            "the data set is empty", hint='Write lines such as {"text": "...", "label": 0}.'
        )
    return found


def draw(found: Evaluation, path: str) -> None:
    """Recall over false alarms, with what is in force marked."""
    form = _FORMS.get(os.path.splitext(path)[1].lower())
    if form is None:
        raise BadInput("a curve is drawn as PNG or SVG", hint="Name a file that ends with .svg.")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra
    except ImportError:
        raise ConfigError(
            "curves need matplotlib", hint="pip install 'cellwall[plots]', or leave --plot out."
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    points = [
        (point.false_positive_rate, point.recall)
        for point in found.curve
        if point.false_positive_rate is not None and point.recall is not None
    ]
    axes.plot([100 * x for x, _ in points], [100 * y for _, y in points], drawstyle="steps-post")
    if found.recall is not None and found.false_positive_rate is not None:
        axes.plot(100 * found.false_positive_rate, 100 * found.recall, "o", label="in force")
        axes.legend(loc="lower right")
    axes.set(
        xlabel="false alarms (% of texts without an attack)",
        ylabel="recall (% of attacks)",
        xlim=(-0.5, None),
        ylim=(0, 101),
        title=f"{found.attacks} attacks, {found.clean} without",
    )
    axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(path, format=form)
    except OSError as error:
        raise BadInput(
            f"the curve could not be written: {error.strerror}", hint="Name another file."
        ) from error
