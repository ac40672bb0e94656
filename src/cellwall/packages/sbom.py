"""A CycloneDX 1.6 document of the packages of a lock or of a session (PKG-1). Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from cellwall import __version__
from cellwall.packages.locks.model import Lock, LockedFile, LockedPackage

_ALGORITHMS = {
    "sha256": "SHA-256",
    "sha384": "SHA-384",
    "sha512": "SHA-512",
    "sha1": "SHA-1",
    "md5": "MD5",
}
_ROOT = "cellwall:subject"
_URL_CHARACTERS = ":/?#[]@!$&'()*+,;=%~-._"


@dataclass(frozen=True, slots=True)
class InstallCause:
    """The action that got a package, and the audit record that says so."""

    action_id: str
    audit_id: str = ""


def render_lock_sbom(
    lock: Lock,
    *,
    subject: str,
    causes: Mapping[str, Sequence[InstallCause]] | None = None,
    now: datetime | None = None,
) -> bytes:
    """The packages of a lock as CycloneDX JSON; `causes` by package URL.

    One component for each package and version: npm installs one version in several folders.
    """
    moment = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    merged: dict[str, list[LockedPackage]] = {}
    for each in sorted(lock.packages, key=lambda each: each.purl):
        merged.setdefault(each.purl, []).append(each)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "tools": {
                "components": [{"type": "application", "name": "cellwall", "version": __version__}]
            },
            "component": {"type": "application", "bom-ref": _ROOT, "name": subject},
        },
        "components": [
            _component(same, (causes or {}).get(purl, ())) for purl, same in merged.items()
        ],
    }
    if lock.has_graph:
        document["dependencies"] = _dependencies(lock, merged)
    return json.dumps(document, indent=2).encode()


def _component(same: Sequence[LockedPackage], causes: Iterable[InstallCause]) -> dict[str, Any]:
    package = same[0]
    files = list(dict.fromkeys(file for each in same for file in each.files))
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "purl": package.purl,
    }
    if package.version is not None:
        component["version"] = package.version
    if len(files) == 1:
        component["hashes"] = _hashes(files[0])
    references = [each for each in map(_reference, files) if each is not None]
    if references:
        component["externalReferences"] = references
    licences = [_licence(each) for each in dict.fromkeys(each.licence for each in same) if each]
    if licences:
        component["licenses"] = licences[:1]
    properties = list(_properties(package, files, causes))
    if properties:
        component["properties"] = properties
    return component


# npm's archives are .tgz.
_SOURCES = (".tar.gz", ".zip", ".tar.bz2")


def _hashes(file: LockedFile) -> list[dict[str, str]]:
    return [{"alg": _ALGORITHMS[kind], "content": value} for kind, value in file.hashes]


def _reference(file: LockedFile) -> dict[str, Any] | None:
    """Where a file is; a URL without credentials and query, for these may be secrets."""
    try:
        parts = urlsplit(file.url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    # The schema takes no address of IPv6.
    if parts.scheme not in {"http", "https"} or not parts.hostname or ":" in parts.hostname:
        return None
    plain = urlunsplit((parts.scheme, f"{parts.hostname}{port}", parts.path, "", ""))
    reference: dict[str, Any] = {
        "type": "source-distribution" if file.filename.endswith(_SOURCES) else "distribution",
        "url": quote(plain, safe=_URL_CHARACTERS),
    }
    return {**reference, "hashes": _hashes(file)} if file.hashes else reference


def _licence(text: str) -> dict[str, Any]:
    try:
        return {"expression": canonicalize_license_expression(text)}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def _properties(
    package: LockedPackage, files: Sequence[LockedFile], causes: Iterable[InstallCause]
) -> Iterable[dict[str, str]]:
    if len(files) > 1:
        for file in files:
            if not file.url:  # a lock with hashes alone: no reference names them
                for kind, value in file.hashes:
                    yield {"name": "cellwall:file-hash", "value": f"{kind}:{value}"}
    if package.origin:
        yield {"name": "cellwall:origin", "value": package.origin}
    for cause in causes:
        yield {"name": "cellwall:action", "value": cause.action_id}
        if cause.audit_id:
            yield {"name": "cellwall:audit-id", "value": cause.audit_id}


def _dependencies(
    lock: Lock, merged: Mapping[str, Sequence[LockedPackage]]
) -> list[dict[str, Any]]:
    direct = sorted({each.purl for each in lock.packages if each.is_direct})
    listed = [{"ref": _ROOT, "dependsOn": direct}]
    for purl, same in merged.items():
        needed = {lock.by_ref[ref].purl for each in same for ref in each.dependencies}
        listed.append({"ref": purl, "dependsOn": sorted(needed)})
    return listed
