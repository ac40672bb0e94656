"""npm's document of one package (the packument): read, filtered, and its tags set again.

A cell sees only the versions that may be installed. `latest` and every other tag that points to a
version that is not there moves to the newest version below it, so that an installer without a
version gets an older one instead of an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from semver import Version as SemanticVersion

from cellwall.packages.facts import Project, Release
from cellwall.packages.licenses import npm_license
from cellwall.packages.names import Ecosystem
from cellwall.packages.registry.pypi import BadIndex, parse_time

FULL_TYPE = "application/json"
ABBREVIATED_TYPE = "application/vnd.npm.install-v1+json"
MAX_VERSIONS = 50_000
_INTEGRITY = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")
_SHASUM = re.compile(r"[0-9a-f]{40}")
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall", "prepare")
# The fields of a version that an installer reads (npm's package-metadata document).
# fmt: off
_ABBREVIATED_FIELDS = (
    "name", "version", "deprecated", "dependencies", "optionalDependencies", "devDependencies",
    "bundleDependencies", "bundledDependencies", "peerDependencies", "peerDependenciesMeta",
    "bin", "directories", "dist", "engines", "cpu", "os", "libc", "_hasShrinkwrap",
    "hasInstallScript", "funding", "acceptDependencies",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Packument:
    """One package with all versions that have a tarball under a SHA-512."""

    name: str
    document: Mapping[str, Any]
    versions: Mapping[str, Mapping[str, Any]]
    omitted: int = 0


def parse_packument(name: str, data: bytes) -> Packument:
    """The package's document; versions without a strong hash are left out."""
    try:
        document = json.loads(data, parse_float=_finite_number, parse_constant=_refuse_constant)
        entries = document["versions"]
        if document["name"] != name or len(entries) > MAX_VERSIONS:
            raise ValueError("another package, or too many versions")
        document |= {each: _texts(document.get(each)) for each in ("time", "dist-tags")}
        versions = {
            version: entry
            for version, entry in entries.items()
            if SemanticVersion.is_valid(version) and _is_servable(entry, name, version)
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadIndex(f"the index of {name} is malformed ({type(error).__name__})") from None
    return Packument(name, document, versions, len(entries) - len(versions))


def _texts(section: object) -> dict[str, str]:
    """The texts of a section; npm keeps an object in `time.unpublished`."""
    items = section.items() if isinstance(section, dict) else ()
    return {key: each for key, each in items if isinstance(each, str)}


def _finite_number(text: str) -> float:
    """A number above any float would be sent on as Infinity, which is not JSON either."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _refuse_constant(text: str) -> None:
    """NaN and Infinity are not JSON: the clients that get the document could not read it."""
    raise ValueError(text)


def _is_servable(entry: Mapping[str, Any], name: str, version: str) -> bool:
    dist = entry["dist"]
    integrity = dist.get("integrity")
    return (
        entry.get("name") == name
        and entry.get("version") == version
        and isinstance(dist.get("tarball"), str)
        and isinstance(integrity, str)
        and bool(strong_integrity(integrity))
    )


def strong_integrity(integrity: str) -> str:
    """The first SHA-512 of a list of hashes (SRI); empty where there is none."""
    return next(filter(_INTEGRITY.fullmatch, integrity.split()), "")


def project_facts(packument: Packument) -> Project:
    """What the verdict needs to know of the package."""
    try:
        times = packument.document["time"]
        releases = {
            version: _release(version, entry, times.get(version))
            for version, entry in packument.versions.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise BadIndex(f"the index of {packument.name} is malformed") from error
    return Project(Ecosystem.NPM, packument.name, releases)


def _release(version: str, entry: Mapping[str, Any], time: object) -> Release:
    scripts = entry.get("scripts") or {}
    deprecation = entry.get("deprecated") or ""
    publisher = (entry.get("_npmUser") or {}).get("name")
    return Release(
        version,
        uploaded=parse_time(time),
        deprecation=deprecation if isinstance(deprecation, str) else "deprecated",
        has_provenance=bool((entry["dist"].get("attestations") or {}).get("provenance")),
        install_scripts=tuple(name for name in _INSTALL_SCRIPTS if name in scripts),
        publisher=publisher if isinstance(publisher, str) else None,
        maintainers=_names_of(entry.get("maintainers")),
        license=npm_license(entry),
    )


def _names_of(people: object) -> frozenset[str]:
    listed = people if isinstance(people, list) else ()
    names = (each.get("name") for each in listed if isinstance(each, dict))
    return frozenset(name for name in names if isinstance(name, str))


def filter_packument(packument: Packument, versions: Collection[str]) -> dict[str, Any]:
    """The full document with these versions only, and tags that point to one of them."""
    kept = {each: entry for each, entry in packument.versions.items() if each in versions}
    times, tags = packument.document["time"], packument.document["dist-tags"]
    shown = {
        key: value
        for key, value in packument.document.items()
        if key not in {"versions", "time", "dist-tags", "readme", "_attachments"}
    }
    return {
        **shown,
        "dist-tags": _set_tags(tags, kept),
        "versions": kept,
        "time": {key: value for key, value in times.items() if key in kept or key == "created"},
    }


def _set_tags(tags: Mapping[str, str], versions: Collection[str]) -> dict[str, str]:
    ordered = sorted(map(SemanticVersion.parse, versions))
    found: dict[str, str] = {}
    for tag, version in tags.items():
        if version in versions:
            found[tag] = version
            continue
        if not SemanticVersion.is_valid(version):
            continue
        top = SemanticVersion.parse(version)
        # A stable tag stays on stable versions: nobody asked for a prerelease.
        below = [each for each in ordered if each < top and (top.prerelease or not each.prerelease)]
        if below:
            found[tag] = str(below[-1])
    if "latest" not in found and ordered:
        stable = [each for each in ordered if not each.prerelease]
        found["latest"] = str((stable or ordered)[-1])
    return found


def render_packument(document: Mapping[str, Any], *, is_abbreviated: bool) -> bytes:
    """The document in the form that the client accepts."""
    if not is_abbreviated:
        return json.dumps(document).encode()
    versions = {}
    for version, entry in document["versions"].items():
        short = {key: entry[key] for key in _ABBREVIATED_FIELDS if key in entry}
        if any(name in (entry.get("scripts") or {}) for name in _INSTALL_SCRIPTS[:3]):
            short["hasInstallScript"] = True
        versions[version] = short
    modified = max(document["time"].values(), default=None)
    short_document = {
        "name": document["name"],
        "dist-tags": document["dist-tags"],
        "versions": versions,
        **({"modified": modified} if modified else {}),
    }
    return json.dumps(short_document).encode()
