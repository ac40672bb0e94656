"""The TypeScript client in `clients/typescript` belongs to this version of the API."""

from __future__ import annotations

import json

from clients.typescript import generate

import cellwall


def test_stored_types_are_those_of_the_openapi_document():
    stored = generate.SCHEMA.read_text("utf-8").partition("\n")[0]
    assert f"{stored}\n" == generate.first_line(generate.document()), "run ./dev client"


def test_package_has_the_version_of_cellwall():
    names = ("package.json", "package-lock.json")
    found = [json.loads((generate.HERE / name).read_text("utf-8"))["version"] for name in names]
    assert found == [cellwall.__version__] * 2
