"""`server.json`, with which the MCP registry lists the server."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellwall

ROOT = Path(__file__).parents[2]
_TEXT = {"type": "string", "minLength": 1}
_INPUT: dict[str, Any] = {
    "description": _TEXT,
    "value": _TEXT,
    "isRequired": {"type": "boolean"},
    "isSecret": {"type": "boolean"},
}


def _closed(needed: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": needed,
        "properties": properties,
        "additionalProperties": False,
    }


_HEADER = _closed(
    ["name"],
    {
        "name": _TEXT,
        **_INPUT,
        "variables": {"type": "object", "additionalProperties": _closed([], _INPUT)},
    },
)
_STDIO = _closed(["type"], {"type": {"const": "stdio"}})
_HTTP = _closed(
    ["type", "url"],
    {
        "type": {"const": "streamable-http"},
        "url": {"type": "string", "pattern": r"^https?://[^\s]+$"},
        "headers": {"type": "array", "items": _HEADER},
    },
)
_PACKAGE = _closed(
    ["registryType", "identifier", "version", "transport"],
    {
        "registryType": {"const": "pypi"},
        "registryBaseUrl": {"const": "https://pypi.org"},
        "identifier": _TEXT,
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+([-+.].*)?$"},
        "runtimeHint": {"const": "uvx"},
        "transport": {"oneOf": [_STDIO, _HTTP]},
        "packageArguments": {
            "type": "array",
            "items": _closed(["type", "value"], {"type": {"const": "positional"}, "value": _TEXT}),
        },
    },
)
# The fields of the registry's schema of 2025-12-11 that the file uses, and no others: what that
# schema permits beside them is a mistake here.
SCHEMA = _closed(
    ["$schema", "name", "description", "version", "packages"],
    {
        "$schema": {
            "const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
        },
        "name": {
            "type": "string",
            "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$",
            "minLength": 3,
            "maxLength": 200,
        },
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "maxLength": 255},
        "packages": {"type": "array", "minItems": 1, "items": _PACKAGE},
    },
)


@pytest.fixture
def found() -> dict[str, Any]:
    return json.loads((ROOT / "server.json").read_text())


def problems(document: dict[str, Any]) -> Iterator[object]:
    # The validator builds many parsers when it is imported; only the worker that runs this file pays.
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    return Draft202012Validator(SCHEMA).iter_errors(document)


def test_the_file_has_the_form_that_the_registry_takes(found: dict[str, Any]) -> None:
    assert list(problems(found)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": "cellwall"},
        {"description": "x" * 101},
        {"packages": []},
        {"packages": [{"registryType": "pypi", "identifier": "cellwall"}]},
        {"unknown": 1},
    ],
)
def test_the_form_refuses_mistakes(found: dict[str, Any], change: dict[str, Any]) -> None:
    assert list(problems({**copy.deepcopy(found), **change}))


def test_the_file_is_about_this_version_and_its_commands(found: dict[str, Any]) -> None:
    assert found["version"] == cellwall.__version__
    assert {each["version"] for each in found["packages"]} == {cellwall.__version__}
    assert [each["packageArguments"][0]["value"] for each in found["packages"]] == ["mcp", "serve"]
    # By this line the registry knows that the package on PyPI is the server's.
    assert f"mcp-name: {found['name']}" in (ROOT / "README.md").read_text()
