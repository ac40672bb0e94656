"""The data of figures: what E2B's SDK makes of it, against what was drawn."""

from __future__ import annotations

import datetime as dt
import importlib
import json
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest
from e2b_code_interpreter import Result
from e2b_code_interpreter.charts import BoxAndWhiskerChart

from cellwall.sandbox.inside.charts import read_chart

pytestmark = pytest.mark.requirement("INT-2")


@pytest.fixture
def plt() -> Iterator[Any]:
    mpl.use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")  # takes a second, and only here
    yield pyplot
    pyplot.close("all")


def drawn(plt: Any) -> Any:
    """The chart of the current figure, read by the SDK; as in a cell, the figure was drawn."""
    figure = plt.gcf()
    figure.canvas.draw()
    found = json.loads(json.dumps(read_chart(figure), allow_nan=False))
    return None if found is None else Result(chart=found).chart


@pytest.mark.slow
def test_lines_have_labels_units_ticks_and_points(plt: Any) -> None:
    plt.plot([1, 2, 3], [1, 4, float("nan")], label="squares")
    plt.plot([1, 2], [3, 4])
    plt.axhline(2)
    plt.title("Growth")
    plt.xlabel("Time (s)")
    plt.ylabel("Size [MB]")
    chart = drawn(plt)
    assert (chart.type, chart.title) == ("line", "Growth")
    assert (chart.x_label, chart.x_unit, chart.y_unit) == ("Time (s)", "s", "MB")
    assert [(each.label, each.points) for each in chart.elements] == [
        ("squares", [(1.0, 1.0), (2.0, 4.0), (3.0, None)]),
        ("Line 1", [(1.0, 3.0), (2.0, 4.0)]),
    ]
    assert (chart.x_scale, len(chart.x_ticks)) == ("linear", len(chart.x_tick_labels))


@pytest.mark.slow
def test_axes_of_names_dates_and_logarithms_are_told_apart(plt: Any) -> None:
    plt.plot(["a", "b"], [1, 10])
    plt.yscale("log")
    chart = drawn(plt)
    assert (chart.x_scale, chart.y_scale) == ("categorical", "log")
    assert chart.elements[0].points == [("a", 1.0), ("b", 10.0)]
    plt.close("all")
    plt.plot([dt.date(2026, 1, day) for day in (1, 2)], [1, 2])
    chart = drawn(plt)
    assert (chart.x_scale, chart.elements[0].points[0]) == ("datetime", ("2026-01-01", 1.0))
    assert chart.x_ticks[0].startswith("2026-01-01T00:00:00")


def test_points_bars_and_wedges(plt: Any) -> None:
    plt.scatter([1, 2], [4, 5], label="group")
    (spots,) = drawn(plt).elements
    assert (spots.label, spots.points) == ("group", [(1.0, 4.0), (2.0, 5.0)])
    plt.close("all")
    plt.bar(["a", "b"], [3, 3], label="one")
    plt.bar(["a", "b"], [1, 2], bottom=[3, 3])
    bars = [(each.label, each.group, each.value) for each in drawn(plt).elements]
    assert bars == [("a", "one", 3), ("b", "one", 3), ("a", "Group 1", 1), ("b", "Group 1", 2)]
    plt.close("all")
    plt.barh(["a", "b"], [3, 1])
    plt.xlabel("Weight (kg)")
    chart = drawn(plt)
    assert (chart.y_label, chart.y_unit, chart.elements[0].value) == ("Weight (kg)", "kg", 3)
    plt.close("all")
    plt.hist([1, 2, 2, 5], bins=[0, 2, 4, 6])
    assert [(each.label, each.value) for each in drawn(plt).elements] == [
        *(("1", 1), ("3", 2), ("5", 1))
    ]
    plt.close("all")
    plt.pie([1, 2, 3], labels=["a", "b", "c"])
    assert [(each.label, each.angle) for each in drawn(plt).elements] == [
        *(("a", 60), ("b", 120), ("c", 180))
    ]


@pytest.mark.parametrize("is_filled", [True, False])
@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
@pytest.mark.parametrize("second", [[], [[2, 3, 4, 5, 7]]])
def test_boxes_have_quartiles_whiskers_and_outliers(
    plt: Any, orientation: str, second: list[list[int]], is_filled: bool
) -> None:
    is_lying = orientation == "horizontal"
    side = (
        {"orientation": orientation} if mpl.__version_info__ >= (3, 10) else {"vert": not is_lying}
    )
    plt.boxplot([[1, 2, 3, 4, 50], *second], patch_artist=is_filled, **side)
    plt.gca().set(**{"xlabel" if is_lying else "ylabel": "Time (s)"})
    chart = drawn(plt)
    assert isinstance(chart, BoxAndWhiskerChart)
    assert (chart.y_unit, len(chart.elements)) == ("s", 1 + len(second))
    box = chart.elements[0]
    found = box.min, box.first_quartile, box.median, box.third_quartile, box.max
    assert (found, box.outliers, box.label) == ((1, 2, 3, 4, 4), [50], "1")


def test_several_axes_unknown_artists_and_nothing(plt: Any) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [3, 5])
    right.imshow([[1, 2], [3, 4]])
    figure.suptitle("Both")
    chart = drawn(plt)
    assert (chart.type, chart.title) == ("superchart", "Both")
    assert [(each.type, len(each.elements)) for each in chart.elements] == [
        *(("line", 1), ("unknown", 0))
    ]
    plt.close("all")
    plt.figure()
    assert drawn(plt) is None
    plt.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0])  # a rectangle, and no box plot
    assert drawn(plt).type == "line"
