"""The verdict on the bytes of an artifact (PKG-1)."""

from __future__ import annotations

import os
import re
from typing import IO

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.inspection.archives import UnsafeArchive, read_archive
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.packages.inspection.sources import inspect_source
from cellwall.packages.inspection.tarballs import inspect_tarball
from cellwall.packages.inspection.wheels import inspect_wheel
from cellwall.packages.names import Ecosystem

WIDELY_USED_RANK = 5000
"""Packages of this rank have been looked at by many: their questions count as answered."""

_MAX_NAME, _MAX_TEXT = 100, 400
_LONG_NAME = re.compile(rf"\S{{{_MAX_NAME + 1},}}")


def inspect_artifact(
    ecosystem: Ecosystem,
    name: str,
    version: str,
    filename: str,
    stream: IO[bytes],
    rank: int | None,
    metadata_sha256: str | None = None,
) -> PackageVerdict:
    """Read the archive to its end and judge its files.

    `metadata_sha256`: of the metadata that the index serves apart from a wheel (PEP 658).
    """
    stream.seek(0)
    size = os.fstat(stream.fileno()).st_size
    try:
        members = read_archive(stream, filename, size)
        if ecosystem is Ecosystem.NPM:
            findings = inspect_tarball(members, name, version)
        elif filename.endswith(".whl"):
            findings = inspect_wheel(members, name, version, metadata_sha256)
        else:
            findings = inspect_source(members, name, version)
    except UnsafeArchive as error:
        code = f"archive-{error.code}"
        findings = [ArtifactFinding(code, Verdict.DENY, str(error), is_proof=True)]
    is_widely_used = rank is not None and rank <= WIDELY_USED_RANK
    reasons = tuple(
        Reason(
            EvidenceStep.ARTIFACT,
            each.weigh(is_widely_used=is_widely_used),
            each.code,
            _bounded(each.text),
        )
        for each in findings
    )
    return PackageVerdict(ecosystem, name, version, reasons)


def _bounded(text: str) -> str:
    """The names of files are text of a stranger, for the model that reads the reason."""
    shown = _LONG_NAME.sub(lambda found: f"{found[0][:_MAX_NAME]}…", text)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"
