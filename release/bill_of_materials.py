"""The dependencies of a release as CycloneDX JSON: the same bytes for the same uv.lock."""

from __future__ import annotations

import json
import subprocess
import uuid
from datetime import UTC, datetime
from pathlib import Path


def write_sbom(uv: str, root: Path, target: Path, *, epoch: int) -> int:
    """Writes the file; returns how many components it lists."""
    command = [uv, "export", "--locked", "--no-dev", "--all-extras", "--format", "cyclonedx1.5"]
    made = subprocess.run([*command, "--quiet"], cwd=root, check=True, capture_output=True)
    document = json.loads(made.stdout)
    # uv puts in the current time and a random number.
    document["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    document.pop("serialNumber", None)
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return len(document["components"])
