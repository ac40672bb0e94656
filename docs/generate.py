"""Writes the generated parts of the documentation: `./dev docs`. A test checks they are current."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cellwall.config.schema import schema_text, with_reference
from cellwall.core import errors
from cellwall.core.errors import CellwallError

HERE = Path(__file__).parent
PROMISES = "<!-- generated: promises -->"
ERRORS = "<!-- generated: errors -->"
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
    rows = [f"{len(states)} promises: {counts}.", "", "| id | state | promise |", "|---|---|---|"]
    for name, promise in manifest.items():
        missing = "".join(
            f" *Missing: {clause['says']} {clause['missing']}*"
            for clause in promise["clauses"]
            if "missing" in clause
        )
        text = f"{promise['text']}{missing}".replace("|", "\\|")
        rows.append(f"| {name} | {state(promise)} | {text} |")
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


def with_generated(name: str, begin: str, generated: str) -> str:
    """A document with a current generated part."""
    before, rest = (HERE / name).read_text("utf-8").split(begin, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{begin}\n{generated}\n{END}{after}"


def documents() -> dict[Path, str]:
    """Every generated document and what it should hold."""
    configuration = HERE / "configuration.md"
    return {
        HERE / "specification.md": with_generated("specification.md", PROMISES, promises()),
        HERE / "errors.md": with_generated("errors.md", ERRORS, error_reference()),
        configuration: with_reference(configuration.read_text("utf-8")),
        HERE / "cellwall.schema.json": schema_text(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
