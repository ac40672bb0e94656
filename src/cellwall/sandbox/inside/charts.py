"""The data of a figure of matplotlib, in the form that E2B's SDK reads as `result.chart` (INT-2).

Like `show`, this module has the rights of the code beside it: nothing that it returns is trusted
outside, and its caller bounds the result and catches every exception. A figure whose artists are of
no known kind is of the type `unknown`, without elements.
"""

from __future__ import annotations

import re
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all of this file
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
_BOX_CORNERS = 5  # of a closed rectangle: the last is the first


def read_chart(figure: Any) -> dict[str, object] | None:
    """The chart of a figure; several axes are a `superchart`; None: nothing was drawn."""
    axes = figure.get_axes()
    if not any(each.has_data() for each in axes):
        return None
    if len(axes) == 1:
        return _chart(axes[0])
    charts = [_chart(each) for each in axes]
    return {"type": "superchart", "title": figure.get_suptitle(), "elements": charts}


def _chart(axes: Any) -> dict[str, object]:
    patches = sys.modules["matplotlib.patches"]
    collections = sys.modules["matplotlib.collections"]
    drawn = (*axes.patches, *axes.collections, *axes.images, *axes.tables, *axes.artists)
    marks = [line for line in axes.lines if not _is_guide(line)]
    boxes = _boxes(axes)
    if boxes:
        return _flat(axes, "box_and_whisker", boxes, is_turned=_is_lying(axes))
    if not drawn:
        lines = [_points(x, x.get_xdata(), x.get_ydata(), "_child", "Line") for x in marks]
        return _pointed(axes, "line", lines)
    if marks or len({type(each) for each in drawn}) != 1:
        return {"type": "unknown", "title": axes.get_title() or None, "elements": []}
    if isinstance(drawn[0], collections.PathCollection):
        offsets = [(each, each.get_offsets()) for each in drawn]
        spots = [_points(each, at[:, 0], at[:, 1]) for each, at in offsets]
        return _pointed(axes, "scatter", spots)
    if isinstance(drawn[0], patches.Wedge):
        return {"type": "pie", "title": axes.get_title() or None, "elements": _wedges(drawn)}
    if isinstance(drawn[0], patches.Rectangle) and axes.containers:
        is_lying = all(each.orientation == "horizontal" for each in axes.containers)
        return _flat(axes, "bar", _bars(axes, is_lying=is_lying), is_turned=is_lying)
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def _flat(axes: Any, kind: str, elements: object, *, is_turned: bool = False) -> dict[str, object]:
    """A chart with two axes; where it lies on its side, the axis of values is still `y`."""
    labels = [axes.get_xlabel() or None, axes.get_ylabel() or None]
    if is_turned:
        labels.reverse()
    units = [_unit(each) for each in labels]
    return {
        "type": kind,
        "title": axes.get_title() or None,
        "x_label": labels[0],
        "y_label": labels[1],
        "x_unit": units[0],
        "y_unit": units[1],
        "elements": elements,
    }


def _unit(label: str | None) -> str | None:
    found = _UNIT.search(label or "")
    return None if found is None else found[1] or found[2]


def _pointed(axes: Any, kind: str, elements: object) -> dict[str, object]:
    """A chart of points, with the ticks of its axes."""
    chart = _flat(axes, kind, elements)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        is_date = _is_date_axis(axis)
        at = [float(each) for each in axis.get_ticklocs()]
        labels = [each.get_text() for each in axis.get_ticklabels()]
        ticks = enumerate(zip(at, labels))  # noqa: B905  # Python 3.9 may be inside
        is_named = all(tick == number and text != str(number) for number, (tick, text) in ticks)
        is_category = axis.get_scale() == "linear" and is_named
        scale = "categorical" if is_category else axis.get_scale()
        chart[f"{name}_ticks"] = [_date(each) for each in at] if is_date else at
        chart[f"{name}_tick_labels"] = labels
        chart[f"{name}_scale"] = "datetime" if is_date else scale
    return chart


def _is_date_axis(axis: Any) -> bool:
    dates: Any = sys.modules.get("matplotlib.dates")
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    kinds = (dates.DateConverter, dates._SwitchableDateConverter) if dates else ()
    return isinstance(converter, kinds)


def _date(number: float) -> object:
    return sys.modules["matplotlib.dates"].num2date(number).isoformat()


def _points(
    artist: Any, xs: Iterable[Any], ys: Iterable[Any], prefix: str = "", word: str = ""
) -> dict[str, object]:
    label = str(artist.get_label())
    if prefix and label.startswith(prefix):  # the label of an artist that was given none
        label = f"{word} {label[len(prefix) :]}"
    points = [[_coordinate(x), _coordinate(y)] for x, y in zip(xs, ys)]  # noqa: B905  # Python 3.9 may be inside
    return {"label": label, "points": points}


def _coordinate(value: Any) -> object:
    """A number, a text, or a date in ISO 8601; None for what is missing."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.datetime64):
        return str(value.astype("datetime64[s]"))
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, str):
        return value
    number = float(value)
    return number if number - number == 0.0 else None  # JSON has neither NaN nor infinity


def _is_guide(line: Any) -> bool:
    """A straight line along an axis, such as `axhline` draws."""
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == len(ys) == 2 and bool(xs[0] == xs[1] or ys[0] == ys[1])


def _bars(axes: Any, *, is_lying: bool) -> list[dict[str, object]]:
    axis = axes.yaxis if is_lying else axes.xaxis
    names = [each.get_text() for each in axis.get_ticklabels()]
    found: list[dict[str, object]] = []
    for container in axes.containers:
        group = str(container.get_label())
        if group.startswith("_container"):
            group = f"Group {group[len('_container') :]}"
        for number, bar in enumerate(container):
            middle = (
                bar.get_y() + bar.get_height() / 2
                if is_lying
                else bar.get_x() + bar.get_width() / 2
            )
            # Ticks belong to bars only where there are as many: else they are a plain scale.
            label = names[number] if len(names) == len(container) else f"{_round(middle):g}"
            value = bar.get_width() if is_lying else bar.get_height()
            found.append({"label": label, "group": group, "value": float(value)})
    return found


def _wedges(wedges: Iterable[Any]) -> list[dict[str, object]]:
    return [
        {
            "label": str(each.get_label()),
            "angle": _round(abs(each.theta2 - each.theta1)),
            "radius": float(each.r),
        }
        for each in wedges
    ]


def _round(number: Any) -> float:
    """To nine digits: what single precision left of 0.1 is no value of the code's."""
    return float(f"{float(number):.9g}")


# Box plots have no artist of their own: boxes are patches or closed lines, with lines around them.


def _outlines(axes: Any) -> list[tuple[list[float], list[float]]]:
    """The corners of the boxes; none where something else was drawn."""
    patches: Any = sys.modules["matplotlib.patches"]
    if axes.patches:
        if axes.collections or not all(isinstance(x, patches.PathPatch) for x in axes.patches):
            return []
        corners = [each.get_path().vertices for each in axes.patches]
        return [([_round(x) for x in c[:, 0]], [_round(y) for y in c[:, 1]]) for c in corners]
    found = []
    for line in () if axes.collections or axes.images else axes.lines:
        xs, ys = line.get_xdata(), line.get_ydata()
        is_closed = len(xs) == _BOX_CORNERS and xs[0] == xs[-1] and ys[0] == ys[-1]
        if is_closed and len(set(xs)) == len(set(ys)) == 2:
            found.append(([_round(x) for x in xs], [_round(y) for y in ys]))
    return found


def _is_lying(axes: Any) -> bool:
    """Whether the values run along x. The boxes of one plot have the same extent across."""
    outlines = _outlines(axes)
    heights = {_round(max(ys) - min(ys)) for _, ys in outlines}
    widths = {_round(max(xs) - min(xs)) for xs, _ in outlines}
    if len(outlines) > 1 and len(heights) != len(widths):
        return len(heights) < len(widths)
    # One box: its whiskers run along the values.
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    (xs, ys), *_ = outlines
    along_y = [x for x, y in lines if len(x) == 2 and x[0] == x[1] and min(xs) < x[0] < max(xs)]
    along_x = [y for x, y in lines if len(y) == 2 and y[0] == y[1] and min(ys) < y[0] < max(ys)]
    # The median crosses the box as the whiskers do not: two whiskers against one median.
    return len(along_x) > len(along_y)


def _boxes(axes: Any) -> list[dict[str, object]]:
    """The boxes of a box plot; none where one of them lacks its median or a whisker."""
    outlines = _outlines(axes)
    if not outlines:
        return []
    is_lying = _is_lying(axes)
    axis = axes.yaxis if is_lying else axes.xaxis
    names = [each.get_text() for each in axis.get_ticklabels()]
    found = []
    for number, (xs, ys) in enumerate(outlines):
        across, along = (ys, xs) if is_lying else (xs, ys)
        box = _box(axes, across, along, is_lying=is_lying)
        if box is None:
            return []
        label = names[number] if number < len(names) else str(number + 1)
        found.append({"label": label, **box})
    return found


def _box(
    axes: Any, across: list[float], along: list[float], *, is_lying: bool
) -> dict[str, object] | None:
    low, high = min(along), max(along)
    values: dict[str, float] = {}
    outliers: list[float] = []
    for line in axes.lines:
        data = (line.get_ydata(), line.get_xdata())
        at, value = ([_round(x) for x in each] for each in (data if is_lying else data[::-1]))
        if not at or not all(min(across) <= each <= max(across) for each in at):
            continue
        if line.get_linestyle() == "None":  # markers alone; one within the box is a mean
            outliers += [each for each in value if not low <= each <= high]
        elif len(value) != 2:
            continue
        elif at[0] != at[1]:
            if value[0] == value[1] and low <= value[0] <= high:
                values["median"] = value[0]  # drawn after the caps, which may lie here as well
        elif max(value) == low and "min" not in values:
            values["min"] = min(value)
        elif min(value) == high:
            values["max"] = max(value)
    if len(values) != 3:
        return None
    return {**values, "first_quartile": low, "third_quartile": high, "outliers": outliers}
