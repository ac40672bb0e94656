"""Templates: always escaped, and with characters that hide or reorder text spelled out."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from cellwall.core.showing import escaped

_MAX_LINE = 400
MAX_BLOCK = 20_000
MAX_LINES = 400
NOTHING = "\N{EN DASH}"
"""For a value that is not known."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def shown(value: object, most: int = _MAX_LINE) -> str:
    """One line in which each invisible or reordering character is spelled out; a long text loses
    its middle, since harm hides at the end of a command."""
    text = str(value)
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"
    return escaped(text)


def shown_block(value: object, most_lines: int = MAX_LINES) -> str:
    """Several lines, each as by `shown`."""
    text = str(value)
    if len(text) > MAX_BLOCK:
        half = MAX_BLOCK // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    lines = text.split("\n")
    if len(lines) > most_lines:
        half = most_lines // 2
        note = f"… {len(lines) - 2 * half} lines left out …"
        lines = [*lines[:half], note, *lines[-half:]]
    return "\n".join(escaped(line.replace("\t", "    ")) for line in lines)


def clock(at_s: float | None) -> Markup:
    """A moment: the time today, else the date as well; always UTC, as the record has it."""
    if at_s is None:
        return escape(NOTHING)
    moment = datetime.fromtimestamp(at_s, UTC)
    is_today = moment.date() == datetime.now(UTC).date()
    text = moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")
    machine = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(machine, text)


def recorded(text: str) -> Markup:
    """The time of a record, by `clock`."""
    return clock(datetime.fromisoformat(text).timestamp())


def ago(at_s: float | None) -> str:
    """How long ago, in one unit."""
    return NOTHING if at_s is None else f"{span(max(0.0, time.time() - at_s))} ago"


def span(seconds: float | None) -> str:
    """A duration with its unit: `12 ms`, `3.4 s`, `5 min`, `2 h`, `3 d`."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {name}" if value < 10 and unit == 1 else f"{value:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def size(count: float | None) -> str:
    """Bytes with their unit."""
    if count is None:
        return NOTHING
    power = 0 if count < 1000 else min(int(math.log10(count) // 3), len(_UNITS) - 1)
    value = count / 1000**power
    return (
        f"{value:.0f} {_UNITS[power]}"
        if power == 0 or value >= 100
        else f"{value:.1f} {_UNITS[power]}"
    )


def number(value: float) -> str:
    """A count with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def spark(values: Sequence[float], *, width: int = 96, height: int = 20) -> Markup:
    """The points of a line in an SVG of this size."""
    if not values:
        return Markup("")
    top = max(*values, 1e-9) if len(values) > 1 else max(values[0], 1e-9)
    step = width / max(1, len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{height - 1 - value / top * (height - 2):.1f}"
        for index, value in enumerate(values)
    )
    return Markup(points)  # noqa: S704  # numbers alone


def with_query(path: str, **parameters: object) -> str:
    """An address with the parameters that have a value."""
    kept = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def as_json(value: object) -> str:
    """JSON for an attribute; the template escapes it."""
    return json.dumps(value, separators=(",", ":"))


def json_block(value: object) -> str:
    """JSON for people."""
    return shown_block(json.dumps(value, indent=2, ensure_ascii=False, default=str))


@cache
def environment() -> jinja2.Environment:
    """The templates of the dashboard. An unknown name in a template is an error, not an empty
    text."""
    folder = resources.files("cellwall.interfaces.http.dashboard").joinpath("templates")
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(folder)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "shown": shown,
        "block": shown_block,
        "clock": clock,
        "recorded": recorded,
        "ago": ago,
        "span": span,
        "size": size,
        "number": number,
        "spark": spark,
        "json_block": json_block,
        "as_json": as_json,
        "path": lambda text: quote(str(text), safe=""),
        "e": escape,
    }
    found.filters.update(filters)
    found.globals.update(with_query=with_query)
    return found
