"""The verdict on the bytes of an artifact (PKG-1)."""

from __future__ import annotations

import os
from typing import IO

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.archives import UnsafeArchive, read_archive
from cellwall.packages.inspection.findings import ArtifactFinding
from cellwall.packages.inspection.sources import inspect_source
from cellwall.packages.inspection.tarballs import inspect_tarball
from cellwall.packages.inspection.wheels import inspect_wheel
from cellwall.packages.names import Ecosystem
from cellwall.packages.verdict import PackageVerdict, Reason, Step

WIDELY_USED_RANK = 5000
"""Packages of this rank have been looked at by many: their questions count as answered."""


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
        Reason(Step.ARTIFACT, each.weigh(is_widely_used=is_widely_used), each.code, each.text)
        for each in findings
    )
    return PackageVerdict(ecosystem, name, version, reasons)
