"""The schema of CycloneDX 1.6, as its Python library ships it, with every format checked.

The library's own validator needs the extra `json-validation`: a grammar of RFC 3987 is then compiled
in every process that imports `jsonschema`, Ray's included, which takes more than a second each.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import jsonschema_rs

_SCHEMAS = resources.files("cyclonedx.schema") / "_res"


def find_problems(document: object) -> list[str]:
    """What the schema does not allow, in words."""
    return [error.message for error in _validator().iter_errors(document)]


@functools.cache
def _validator() -> jsonschema_rs.Draft7Validator:
    bom = _read("bom-1.6.SNAPSHOT.schema.json")
    return jsonschema_rs.Draft7Validator(bom, retriever=_read_uri, validate_formats=True)


def _read_uri(uri: str) -> Any:
    """Other schemas that this one refers to: files beside it, so that nothing is fetched."""
    return _read(uri.rsplit("/", 1)[1])


def _read(name: str) -> Any:
    return json.loads((_SCHEMAS / name).read_text(encoding="utf-8"))
