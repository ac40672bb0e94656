"""Strict schemas of Kubernetes, KubeRay and agent-sandbox, for manifests and requests in tests."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def problems(resource: Mapping[str, Any]) -> list[str]:
    """What the API server would refuse: wrong types, missing fields, and fields that it does not
    know."""
    # Late: every worker imports this file, and the grammars of jsonschema's formats take a second.
    import jsonschema  # noqa: PLC0415

    kind = f"{resource.get('apiVersion')}/{resource.get('kind')}"
    try:
        schema = _schema(kind)
    except KeyError:
        return [f"no schema of {kind}"]
    found = jsonschema.Draft7Validator(schema).iter_errors(resource)
    return sorted(
        f"{'.'.join(map(str, each.absolute_path))}: {each.message[:200]}" for each in found
    )


@cache
def _schema(kind: str) -> dict[str, Any]:
    stored = _stored()
    return {**stored["kinds"][kind], "definitions": stored["definitions"]}


@cache
def _stored() -> dict[str, Any]:
    packed = Path(__file__).with_name("schemas.json.xz").read_bytes()
    return dict(json.loads(lzma.decompress(packed)))
