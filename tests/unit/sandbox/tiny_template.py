"""A template of one small package, built offline: the real path without the real download."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from cellwall.sandbox.templates import definitions

PACKAGE = "tiny"


def wheel(folder: Path, *, files: dict[str, str] | None = None) -> bytes:
    """Write tiny-1.0 as a wheel; returns the requirements that pin it."""
    name = f"{PACKAGE}-1.0-py3-none-any.whl"
    info = f"{PACKAGE}-1.0.dist-info"
    content = {
        "tiny/__init__.py": "ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
        **(files or {}),
    }
    record = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return f"{PACKAGE}==1.0 \\\n    --hash=sha256:{digest}\n".encode()


def offline(monkeypatch: pytest.MonkeyPatch, folder: Path, requirements: bytes) -> None:
    """`python-data` is made of these requirements, and packages come from `folder` alone."""
    monkeypatch.setattr(definitions, "shipped_requirements", lambda _: requirements)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # not the developer's own index
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
