"""Writes the generated parts of the documentation: `./dev docs`. A test checks they are current."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from cellwall.config.fields import Section
from cellwall.config.load import profile_settings
from cellwall.config.models import (
    DEFAULT_PROFILE,
    PROFILE_NAMES,
    SECTIONS,
    Settings,
    bounds,
    is_size,
    schema_text,
)
from cellwall.core import errors
from cellwall.core.errors import CellwallError
from cellwall.core.limits import size_text
from cellwall.telemetry import names

HERE = Path(__file__).resolve().parent
PROMISES = "<!-- generated: promises -->"
ERRORS = "<!-- generated: errors -->"
SETTINGS = "<!-- generated: settings -->"
METRICS = "<!-- generated: metrics -->"
SPANS = "<!-- generated: spans -->"
API = "<!-- generated: api -->"
FUZZING = "<!-- generated: figures of ./dev fuzz -->"
END = "<!-- end of generated -->"


def state(promise: dict[str, Any]) -> str:
    """Kept when every clause has a test, partly when some have, open when none has."""
    tested = ["test" in clause for clause in promise["clauses"]]
    return "kept" if all(tested) else "partly" if any(tested) else "open"


def promises() -> str:
    """The table of promises, from requirements.toml."""
    manifest = tomllib.loads((HERE / "requirements.toml").read_text("utf-8"))
    states = [state(promise) for promise in manifest.values()]
    counts = ", ".join(f"{states.count(each)} {each}" for each in ("kept", "partly", "open"))
    rows = [f"{len(states)} promises: {counts}.", ""]
    rows += ["| id | state | clauses with a test | promise |", "|---|---|---|---|"]
    for name, promise in manifest.items():
        missing = "".join(
            f" *Missing: {clause['says']} {clause['missing']}*"
            for clause in promise["clauses"]
            if "missing" in clause
        )
        text = f"{promise['text']}{missing}".replace("|", "\\|")
        tested = sum("test" in clause for clause in promise["clauses"])
        share = f"{tested} of {len(promise['clauses'])}"
        rows.append(f"| {name} | {state(promise)} | {share} | {text} |")
    return "\n".join(rows)


def error_classes(root: type[CellwallError] = CellwallError, depth: int = 0) -> list[str]:
    """The tree of the public error classes, one line for each, in the order of their definition."""
    public = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    lines = []
    for kind in public:
        edge = "└── " if kind is public[-1] else "├── "
        lines += [f"{'    ' * depth}{edge}{kind.__name__}", *error_classes(kind, depth + 1)]
    return lines if depth else [root.__name__, *lines]


def error_reference() -> str:
    """The tree, and for each class its default code and meaning."""
    rows = ["```text", *error_classes(), "```", "", "| class | code | meaning |", "|---|---|---|"]
    rows += [
        f"| `{kind.__name__}` | `{kind.default_code}` | {kind.__doc__} |"
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, CellwallError)
    ]
    return "\n".join(rows)


def settings_reference() -> str:
    """Every key with type, default, range and reason, and the differences of the profiles."""
    parts = [_section_markdown(name, model) for name, model in SECTIONS.items()]
    return "\n".join([_profile_key_markdown(), *parts, _profiles_markdown()])


def _profile_key_markdown() -> str:
    names = ", ".join(f"`{name}`" for name in PROFILE_NAMES)
    reason = Settings.model_fields["profile"].description
    return f"### `profile`\n\nOne of {names}; `{DEFAULT_PROFILE}` by default: {reason}.\n"


def _section_markdown(name: str, model: type[Section]) -> str:
    rows = [
        f"| `{key}` | {_kind_of(spec)} | {_shown(spec.default, spec)} | {_range_of(spec)} "
        f"| {spec.description} |\n"
        for key, spec in model.model_fields.items()
    ]
    head = "| key | type | default | range | why |\n|---|---|---|---|---|\n"
    return f"### `[{name}]`\n\n{model.__doc__}\n\n{head}{''.join(rows)}"


def _profiles_markdown() -> str:
    defaults = Settings()
    rows = [
        f"| `{section}.{key}` | "
        + " | ".join(_shown(getattr(getattr(each, section), key), spec) for each in _profiles())
        + " |\n"
        for section, model in SECTIONS.items()
        for key, spec in model.model_fields.items()
        if any(_differs(each, defaults, section, key) for each in _profiles())
    ]
    head = f"| key | {' | '.join(PROFILE_NAMES)} |\n|---|{'---|' * len(PROFILE_NAMES)}\n"
    intro = "What the profiles set differently; all other keys have the default above.\n"
    return f"### Profiles\n\n{intro}\n{head}{''.join(rows)}"


def _profiles() -> Iterator[Settings]:
    for name in PROFILE_NAMES:
        yield profile_settings(name)


def _differs(one: Settings, other: Settings, section: str, key: str) -> bool:
    return bool(getattr(getattr(one, section), key) != getattr(getattr(other, section), key))


def _kind_of(spec: FieldInfo) -> str:
    if is_size(spec):
        return "size"
    kinds: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false"}
    kinds |= {str: "text", dict: "table of names"}
    return kinds.get(get_origin(spec.annotation) or spec.annotation, "list of texts")


def _shown(value: object, spec: FieldInfo) -> str:
    match value:
        case None:
            return "left out"
        case tuple():
            return f"`{json.dumps(list(value))}`"
        case int() if is_size(spec):
            return f'`"{size_text(value)}"`'
        case float():
            return f"`{value:.12g}`"
        case _:
            return f"`{json.dumps(value)}`"


def _range_of(spec: FieldInfo) -> str:
    limits = bounds(spec)
    if limits is not None:
        least, most = (size_text(int(end)) if is_size(spec) else f"{end:.12g}" for end in limits)
        return f"{least} to {most}"
    max_entries = [mark.max_length for mark in spec.metadata if hasattr(mark, "max_length")]
    return f"at most {max_entries[0]}" if max_entries else ""


def metrics_reference() -> str:
    """Every metric with its labels and their values."""
    rows = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in names.METRICS:
        labels = "; ".join(
            f"`{label}`: {', '.join(values) or 'the version'}"
            for label, values in metric.labels.items()
        )
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows)


def spans_reference() -> str:
    """Every span and every attribute."""
    rows = ["| span | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in names.SPANS.items()]
    rows += ["", "| attribute | value |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in names.ATTRIBUTES.items()]
    return "\n".join(rows)


def fuzzing_figures() -> str:
    """The stored run of `./dev fuzz all --json tests/fuzz/figures.json`."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from fuzz.figures import FIGURES, read, table  # noqa: PLC0415  # of the tests, by that path

    return table(read(FIGURES))


def with_generated(name: str, *parts: tuple[str, str]) -> str:
    """A document with its current generated parts, each by its mark."""
    text = (HERE / name).read_text("utf-8")
    for begin, generated in parts:
        before, rest = text.split(begin, 1)
        after = rest.split(END, 1)[1]
        text = f"{before}{begin}\n{generated}\n{END}{after}"
    return text


def documents() -> dict[Path, str]:
    """Every generated document and what it should hold."""
    # Found by the path set below.
    from docs.api_reference import api_reference  # noqa: PLC0415  # see above
    from docs.benchmark_tables import benchmark_parts, benchmark_plots  # noqa: PLC0415  # see above
    from docs.comparison_tables import comparison_parts  # noqa: PLC0415  # see above
    from docs.scale_tables import scale_parts, scale_plots  # noqa: PLC0415  # see above

    plots = {
        HERE / "images" / name: text for name, text in (benchmark_plots() | scale_plots()).items()
    }

    return {
        HERE / "specification.md": with_generated(
            "specification.md",
            (PROMISES, promises()),
            (METRICS, metrics_reference()),
            (SPANS, spans_reference()),
        ),
        HERE / "errors.md": with_generated("errors.md", (ERRORS, error_reference())),
        HERE / "configuration.md": with_generated(
            "configuration.md", (SETTINGS, settings_reference())
        ),
        HERE / "api.md": with_generated("api.md", (API, api_reference())),
        HERE / "benchmarks.md": with_generated("benchmarks.md", *benchmark_parts()),
        HERE / "comparison.md": with_generated("comparison.md", *comparison_parts()),
        HERE / "scale.md": with_generated("scale.md", *scale_parts()),
        HERE / "fuzzing.md": with_generated("fuzzing.md", (FUZZING, fuzzing_figures())),
        HERE / "cellwall.schema.json": schema_text(),
        **plots,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    for path, text in documents().items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
