"""The TypeScript client in `clients/typescript` belongs to this version of the API."""

from __future__ import annotations

import json
import subprocess
import sys

from clients.typescript import generate

import cellwall

_FIRST_LINE = "from clients.typescript import generate as g; print(end=g.first_line(g.document()))"


def test_stored_types_are_those_of_the_openapi_document():
    stored = generate.SCHEMA.read_text("utf-8").partition("\n")[0]
    # In a process of its own, as the service is: `typing` keeps unions by equality, so that another
    # package's `Literal["allow", "deny", "ask"] | None` would put its order into ours.
    command = [sys.executable, "-c", _FIRST_LINE]
    root = generate.HERE.parents[1]
    first = subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=120).stdout
    assert f"{stored}\n" == first.decode(), "run ./dev client"


def test_package_has_the_version_of_cellwall():
    names = ("package.json", "package-lock.json")
    found = [json.loads((generate.HERE / name).read_text("utf-8"))["version"] for name in names]
    assert found == [cellwall.__version__] * 2
