"""Writes the generated parts of the documentation: `./dev docs`. A test checks they are current."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cellwall.config.schema import schema_text, with_reference

HERE = Path(__file__).parent
BEGIN = "<!-- generated: promises -->"
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


def specification() -> str:
    """docs/specification.md with a current table."""
    text = (HERE / "specification.md").read_text("utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{BEGIN}\n{promises()}\n{END}{after}"


def documents() -> dict[Path, str]:
    """Every generated document and what it should hold."""
    configuration = HERE / "configuration.md"
    return {
        HERE / "specification.md": specification(),
        configuration: with_reference(configuration.read_text("utf-8")),
        HERE / "cellwall.schema.json": schema_text(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
