"""The dependencies of a release as CycloneDX JSON: the same bytes for the same uv.lock."""

from __future__ import annotations

import json
import subprocess
import uuid
from datetime import UTC, datetime
from pathlib import Path

_INTEGRATIONS = "src/cellwall/integrations"


def write_sbom(uv: str, root: Path, target: Path, *, epoch: int) -> None:
    """Writes the file."""
    command = [uv, "export", "--locked", "--no-dev", "--all-extras", "--format", "cyclonedx1.5"]
    # An agent framework uses Cellwall, and is no component; their versions exclude one another.
    extras = (each.stem.replace("_", "-") for each in (root / _INTEGRATIONS).glob("[!_]*.py"))
    command += [f"--no-extra={extra}" for extra in sorted(extras)]
    made = subprocess.run([*command, "--quiet"], cwd=root, check=True, capture_output=True)
    document = json.loads(made.stdout)
    # uv puts in the current time and a random number.
    document["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    document.pop("serialNumber", None)
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def check_sbom(path: Path) -> tuple[int, list[str]]:
    """How many components the file lists, and what is wrong: a component without a version cannot
    be compared with an advisory."""
    document = json.loads(path.read_text("utf-8"))
    components = document.get("components", [])
    found = [
        f"{path.name}: {each.get('name')!r} has no {field}"
        for each in (document.get("metadata", {}).get("component", {}), *components)
        for field in ("name", "version")
        if not each.get(field)
    ]
    found += [
        f"{path.name}: {each.get('name')!r} has no purl"
        for each in components
        if not each.get("purl")
    ]
    if not components:
        found.append(f"{path.name}: no component is listed")
    return len(components), found
