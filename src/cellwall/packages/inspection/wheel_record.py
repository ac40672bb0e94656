"""Whether the metadata of a wheel describes its files: METADATA, RECORD, WHEEL (PEP 427). Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from email.policy import compat32

from packaging.utils import canonicalize_name
from packaging.version import Version

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.findings import ArtifactFinding

_SIGNATURES = (".dist-info/RECORD", ".jws", ".p7s")
_MAX_LISTED = 5


def _deny(code: str, text: str) -> ArtifactFinding:
    return ArtifactFinding(code, Verdict.DENY, text, is_proof=True)


def check_folders(folders: set[str], name: str, version: str) -> Iterator[ArtifactFinding]:
    """Installers read the first `.dist-info` folder that they find: there must be one."""
    if len(folders) > 1:
        shown = ", ".join(sorted(folders)[:_MAX_LISTED])
        yield _deny("metadata", f"the wheel has more than one .dist-info folder: {shown}")
    for each in folders:
        stem = each.removesuffix(".dist-info")
        if not _is_same(*stem.partition("-")[::2], name=name, version=version):
            yield _deny(
                "metadata", f"{each} is of another package or version than {name} {version}"
            )


def check_metadata(
    metadata: bytes | None, name: str, version: str, served_sha256: str | None, sha256: str
) -> Iterator[ArtifactFinding]:
    """METADATA names this package, and is the file that the index served to resolvers (PEP 658)."""
    if metadata is None:
        yield _deny("metadata", "the wheel has no METADATA")
        return
    fields = message_from_bytes(metadata, policy=compat32)
    if not _is_same(str(fields["Name"]), str(fields["Version"]), name=name, version=version):
        yield _deny("metadata", f"METADATA names another package or version than {name} {version}")
    elif any(len(fields.get_all(field, [])) > 1 for field in ("Name", "Version")):
        yield _deny("metadata", "METADATA names the package or the version twice")
    if served_sha256 is not None and served_sha256 != sha256:
        yield _deny("metadata", "METADATA differs from the metadata that the index serves")


def _is_same(found_name: str, found_version: str, *, name: str, version: str) -> bool:
    try:
        found = canonicalize_name(found_name), Version(found_version)
        return found == (canonicalize_name(name), Version(version))
    except ValueError:  # no version, or more digits than are converted
        return False


def check_record(record: bytes | None, hashes: Mapping[str, str]) -> Iterator[ArtifactFinding]:
    """Every file is in RECORD with its hash, and every entry is a file."""
    if record is None:
        yield _deny("record", "the wheel has no RECORD")
        return
    rows = list(csv.reader(io.StringIO(record.decode("utf-8", "replace"))))
    listed = {row[0]: row[1] for row in rows if len(row) == 3}
    unlisted = [name for name in hashes if name not in listed and not name.endswith(_SIGNATURES)]
    changed = [
        name
        for name, digest in listed.items()
        if digest.startswith("sha256=") and hashes.get(name, digest) != digest
    ]
    missing = [name for name in listed if name not in hashes and not name.endswith(_SIGNATURES)]
    for text, names in (("not in RECORD", unlisted), ("changed after RECORD", changed)):
        if names:
            yield _deny("record", f"{text}: {', '.join(names[:_MAX_LISTED])}")
    if missing:
        text = f"in RECORD but not in the wheel: {', '.join(missing[:_MAX_LISTED])}"
        yield ArtifactFinding("record", Verdict.ASK, text)


_PLATFORM_TAG = re.compile(rb"^Tag:\s*\S+-none-any\s*$", re.MULTILINE)


def is_for_any_platform(wheel: bytes | None) -> bool:
    """Whether the file WHEEL says that no file of the wheel depends on a platform."""
    return wheel is not None and _PLATFORM_TAG.search(wheel) is not None
