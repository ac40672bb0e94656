"""The template `python-data` (numpy, pandas, matplotlib), built once for all tests of a clone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.sandbox.templates import environments


def python_data_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state directory of this clone with the template: its packages take 20 s of processor time.

    Its name holds the digest of all that builds templates, so a change of it builds anew.
    """
    folder = Path(environments.__file__).parent
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".toml", ".txt"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    tools = Path(__file__).parents[1] / ".tools"
    try:
        tools.mkdir(exist_ok=True)
        for old in tools.glob(f"python-data-{os.geteuid()}-*"):
            if not old.name.endswith(digest):
                shutil.rmtree(old)
        home = tools / f"python-data-{os.geteuid()}-{digest}"
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # a clone of somebody else's
        home = tmp_path_factory.mktemp("python-data")
        home.chmod(0o700)
    if environments.environment_of(str(home), "python-data") is None:
        _build(str(home))
    return str(home)


def _build(home: str) -> None:
    """As a person has it built, from the registry."""
    program = os.path.join(os.path.dirname(sys.executable), "cellwall")
    done = subprocess.run(
        [program, "template", "build", "python-data", "--json"],
        env={**os.environ, "CELLWALL_HOME": home},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    built = json.loads(done.stdout)
    assert (built["name"], built["built"]) == ("python-data", True)  # or another worker built it
    assert {"numpy", "pandas", "matplotlib"} <= built["packages"].keys()
