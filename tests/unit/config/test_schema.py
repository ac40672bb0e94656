from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellwall.config.models import SECTIONS, Settings
from cellwall.config.schema import reference_markdown, schema_text, with_reference

DOCS = Path(__file__).parents[3] / "docs"
HOW = "make it anew with cellwall.config.schema"


@pytest.mark.requirement("CFG-2")
def test_the_documented_reference_is_the_one_of_the_code() -> None:
    document = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert document == with_reference(document), HOW


@pytest.mark.requirement("CFG-2")
def test_the_shipped_json_schema_is_the_one_of_the_code() -> None:
    assert (DOCS / "cellwall.schema.json").read_text(encoding="utf-8") == schema_text(), HOW


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    schema = json.loads(schema_text())
    assert set(schema["properties"]) == set(Settings.model_fields)
    assert schema["additionalProperties"] is False
    for name, model in SECTIONS.items():
        told = schema["$defs"][schema["properties"][name]["$ref"].rpartition("/")[2]]
        assert set(told["properties"]) == set(model.model_fields)
        assert told["additionalProperties"] is False


def test_the_schema_takes_a_size_as_number_or_text_within_the_same_bounds() -> None:
    schema = json.loads(schema_text())
    told = schema["$defs"]["GovernorSection"]["properties"]["max_promised_memory_bytes"]
    number, text = told["anyOf"]
    assert number == {"type": "integer", "minimum": 8 * 1024**2, "maximum": 64 * 1024**4}
    assert text["type"] == "string"
    assert "default" not in told


def test_the_reference_has_a_row_for_every_key() -> None:
    rows = reference_markdown().splitlines()
    for model in SECTIONS.values():
        for key in model.model_fields:
            assert [row for row in rows if row.startswith(f"| `{key}` |")]


def test_a_document_without_a_place_for_the_reference_is_not_touched() -> None:
    with pytest.raises(ValueError, match="no place"):
        with_reference("# Configuration\n")
