"""What a source archive of Python runs when it is built and imported (PKG-1, PKG-3).

A build runs `setup.py`, the backend that `pyproject.toml` names, and what these import. The build
runs in a cell without network; the inspection finds the archives whose build is an attack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from email.policy import compat32
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import Member, strip_root
from cellwall.packages.inspection.code_screening import CodeScreening
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.parsing.toml import load_untrusted_toml

# Folders that a build does not install.
_NOT_INSTALLED = re.compile(r"(?:^|/)(?:tests?|testing|docs?|examples?|bench\w*)/")
PROJECT_FILE = "pyproject.toml"
_BUILD_FILES = frozenset({"setup.py", "conftest.py"})


def inspect_source(members: Iterator[Member], name: str, version: str) -> list[ArtifactFinding]:
    """The findings on a source archive of this canonical name and version."""
    screening, paths = CodeScreening(), []
    described: dict[str, bytes] = {}
    for path, member in strip_root(members):
        paths.append(path)
        if path in {"PKG-INFO", PROJECT_FILE}:
            described[path] = member.read(member.size)
        if not _NOT_INSTALLED.search(path):
            screening.add(path, member.read(member.size), size=member.size)
    if not paths:
        return [
            ArtifactFinding("archive-empty", Verdict.DENY, "the archive is empty", is_proof=True)
        ]
    installing = _BUILD_FILES | _backend_files(described.get(PROJECT_FILE, b""), paths)
    return [
        *_check_metadata(described.get("PKG-INFO"), name, version),
        *screening.findings(installing),
    ]


def read_build_system(project: bytes) -> Mapping[str, Any]:
    """The table `[build-system]` of a `pyproject.toml`; empty where there is none."""
    try:
        found = load_untrusted_toml(project).get("build-system", {})
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _backend_files(project: bytes, paths: list[str]) -> frozenset[str]:
    """The files below `backend-path` of `pyproject.toml`: a build backend in the archive itself."""
    try:
        folders = read_build_system(project)["backend-path"]
        prefixes = tuple("" if each in {".", ""} else f"{each.strip('./')}/" for each in folders)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return frozenset()
    found = frozenset(path for path in paths if path.endswith(".py") and path.startswith(prefixes))
    return frozenset(path for path in found if "/" not in path) if "" in prefixes else found


def _check_metadata(data: bytes | None, name: str, version: str) -> Iterator[ArtifactFinding]:
    if data is None:
        return  # archives from before PEP 625 have none; the build makes it
    fields = message_from_bytes(data, policy=compat32)
    try:
        found = canonicalize_name(str(fields["Name"])), Version(str(fields["Version"]))
        is_same = found == (canonicalize_name(name), Version(version))
    except ValueError:  # no version, or more digits than are converted
        is_same = False
    if not is_same:
        text = f"PKG-INFO names another package or version than {name} {version}"
        yield ArtifactFinding("metadata", Verdict.DENY, text, is_proof=True)
