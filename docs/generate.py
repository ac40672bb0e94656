"""Writes the generated parts of the documentation: `./dev docs`. A test checks they are current."""

from __future__ import annotations

import tomllib
from pathlib import Path

from cellwall.config.schema import schema_text, with_reference

HERE = Path(__file__).parent
BEGIN = "<!-- generated: promises -->"
END = "<!-- end of generated -->"


def promises() -> str:
    """The table of promises, from requirements.toml."""
    manifest = tomllib.loads((HERE / "requirements.toml").read_text("utf-8"))
    rows = ["| id | state | promise |", "|---|---|---|"]
    for name, entry in manifest.items():
        note = f" *Now: {entry['note']}.*" if "note" in entry else ""
        text = entry["text"].replace("|", "\\|")
        rows.append(f"| {name} | {entry['state']} | {text}{note} |")
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
