"""PyPI's index of one project: read from untrusted JSON or HTML, filtered, written again.

Formats: the simple repository API in HTML (PEP 503, 592, 658, 714) and JSON (PEP 691, 700, 740,
792), and the older `/pypi/NAME/json`, which has the upload times where an index has none. A file
without a SHA-256 is left out: the bytes that a cell gets must be the bytes that were judged.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from cellwall.packages.facts import Project, ProjectStatus, Release
from cellwall.packages.licenses import pypi_license
from cellwall.packages.names import Ecosystem
from cellwall.packages.registry.built_wheels import BuiltBySource, BuiltWheel
from cellwall.parsing.html.tokens import characters, tokens

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
MAX_FILES = 50_000
FILES_URL = "https://files.pythonhosted.org"
BUILT = "cellwall-built"
"""The first part of the path of a wheel that Cellwall has built."""
_FILENAME = re.compile(r"[A-Za-z0-9._!+~-]{1,255}")
_MAX_ATTRIBUTE_CHARACTERS = 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadIndex(Exception):
    """The registry's document cannot be read; never leaves this part."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of a project. `metadata_sha256` is that of the wheel's METADATA file (PEP 658)."""

    filename: str
    url: str
    sha256: str
    version: str
    is_wheel: bool
    size: int | None = None
    uploaded: datetime | None = None
    yanked: str | None = None
    requires_python: str | None = None
    metadata_sha256: str | None = None
    provenance: str | None = None
    source: IndexFile | None = None
    """The source archive from which Cellwall built this wheel."""


@dataclass(frozen=True, slots=True)
class ProjectIndex:
    """The files of one project. `omitted` counts files without a hash or a readable name."""

    name: str
    files: tuple[IndexFile, ...]
    status: ProjectStatus = ProjectStatus.ACTIVE
    omitted: int = 0


def parse_index(name: str, data: bytes, content_type: str, url: str) -> ProjectIndex:
    """The index of the project, from the form that the registry answered with."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind in {JSON_TYPE, "application/json"}:
            return _parse_json(name, json.loads(data), url)
        if kind in {HTML_TYPE, "text/html"}:
            return _parse_html(name, data.decode(), url)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadIndex(f"the index of {name} is malformed ({type(error).__name__})") from None
    raise BadIndex(f"the index of {name} has an unknown content type")


def _parse_json(name: str, document: Mapping[str, Any], url: str) -> ProjectIndex:
    entries = document["files"]
    if len(entries) > MAX_FILES:
        raise ValueError("too many files")
    status = (document.get("project-status") or {}).get("status", "active")
    files = [_json_file(name, entry, url) for entry in entries]
    kept = tuple(each for each in files if each is not None)
    return ProjectIndex(name, kept, _read_status(status), len(files) - len(kept))


def _json_file(name: str, entry: Mapping[str, Any], url: str) -> IndexFile | None:
    yanked = entry.get("yanked", False)
    metadata = entry.get("core-metadata", entry.get("data-dist-info-metadata"))
    size = entry.get("size")
    return _checked_file(
        name,
        filename=entry["filename"],
        url=urljoin(url, entry["url"]),
        sha256=entry.get("hashes", {}).get("sha256", ""),
        size=size if isinstance(size, int) and size >= 0 else None,
        uploaded=parse_time(entry.get("upload-time")),
        yanked=None if yanked is False else yanked if isinstance(yanked, str) else "",
        requires_python=entry.get("requires-python"),
        metadata_sha256=metadata.get("sha256") if isinstance(metadata, dict) else None,
        provenance=entry.get("provenance"),
    )


def _parse_html(name: str, text: str, url: str) -> ProjectIndex:
    # Not html.parser: on malformed pages it takes quadratic time (CVE-2025-6069).
    links: list[dict[str, str]] = []
    status = "active"
    for token in tokens(text):
        if token.kind == "cut" or len(links) > MAX_FILES:
            raise ValueError("too many files")
        if token.kind != "start":
            continue
        attributes = {key: characters(value) for key, value in token.attributes.items()}
        if token.word == "a":
            links.append(attributes)
        elif token.word == "meta" and attributes.get("name") == "pypi:project-status":
            status = attributes.get("content", "")
    files = [_html_file(name, attributes, url) for attributes in links]
    kept = tuple(each for each in files if each is not None)
    return ProjectIndex(name, kept, _read_status(status), len(files) - len(kept))


def _read_status(status: object) -> ProjectStatus:
    """An unknown status is a new kind of warning: it counts as the strictest known one."""
    known = {each.value: each for each in ProjectStatus}
    found = known.get(status) if isinstance(status, str) else None
    return found or ProjectStatus.QUARANTINED


def _html_file(name: str, attributes: Mapping[str, str], url: str) -> IndexFile | None:
    address, fragment = urldefrag(urljoin(url, attributes.get("href", "")))
    metadata = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
    return _checked_file(
        name,
        filename=unquote(urlsplit(address).path.rpartition("/")[2]),
        url=address,
        sha256=fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else "",
        yanked=attributes.get("data-yanked"),
        requires_python=attributes.get("data-requires-python"),
        metadata_sha256=(metadata or "").removeprefix("sha256=") or None,
        provenance=attributes.get("data-provenance"),
    )


def _checked_file(  # the fields of one entry
    name: str,
    *,
    filename: str,
    url: str,
    sha256: str,
    yanked: str | None,
    requires_python: object,
    metadata_sha256: object,
    provenance: object,
    size: int | None = None,
    uploaded: datetime | None = None,
) -> IndexFile | None:
    """The file, or None where it cannot be served under a hash and a version of this project."""
    # The tags of a wheel's name may have any character: slashes, quotes, line breaks.
    parsed = split_filename(filename) if _FILENAME.fullmatch(filename) else None
    is_ours = parsed is not None and parsed[0] == name
    if parsed is None or not is_ours or not _SHA256.fullmatch(sha256):
        return None
    parts = urlsplit(url)
    # A cell asks for the file by the path of its URL, and the name in that path selects the index.
    if parts.scheme not in {"http", "https"} or unquote(parts.path).rpartition("/")[2] != filename:
        return None
    if not url.isprintable():  # a lone surrogate of JSON cannot be written into a page
        return None
    metadata = metadata_sha256 if isinstance(metadata_sha256, str) else ""
    return IndexFile(
        filename,
        url,
        sha256,
        parsed[1],
        filename.endswith(".whl"),
        size,
        uploaded,
        yanked,
        _bounded(requires_python),
        metadata if _SHA256.fullmatch(metadata) else None,
        _bounded(provenance),
    )


def _bounded(value: object) -> str | None:
    is_short = isinstance(value, str) and len(value) <= _MAX_ATTRIBUTE_CHARACTERS
    return str(value) if is_short and str(value).isprintable() else None


def split_filename(filename: str) -> tuple[str, str] | None:
    """The canonical name and the version in the name of a wheel or a source archive."""
    try:
        if filename.endswith(".whl"):
            found, version, *_ = parse_wheel_filename(filename)
        else:
            found, version = parse_sdist_filename(filename)
    except ValueError:  # no such name, or more digits than are converted
        return None
    return canonicalize_name(found), str(version)


def parse_time(value: object) -> datetime | None:
    """An RFC 3339 time, in UTC; None where there is none."""
    if not isinstance(value, str) or not value:
        return None
    parsed = datetime.fromisoformat(value)
    try:
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except OverflowError:  # the year 1 or 9999, in another time zone
        return None


def add_upload_times(index: ProjectIndex, data: bytes) -> ProjectIndex:
    """The index with the times of the older JSON API, matched by hash."""
    try:
        releases = json.loads(data)["releases"]
        times = {
            entry["digests"]["sha256"]: parse_time(entry.get("upload_time_iso_8601"))
            for entries in releases.values()
            for entry in entries
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadIndex(f"the releases of {index.name} are malformed") from error
    files = (
        each if each.uploaded else replace(each, uploaded=times.get(each.sha256))
        for each in index.files
    )
    return replace(index, files=tuple(files))


def parse_license(name: str, data: bytes) -> str | None:
    """The SPDX expression in the older JSON API."""
    try:
        return pypi_license(json.loads(data)["info"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadIndex(f"the description of {name} is malformed") from error


def add_built_wheels(index: ProjectIndex, builds: BuiltBySource) -> ProjectIndex:
    """The index with the wheels that Cellwall has built from source archives of the index."""
    built = [
        _built_file(each, wheel) for each in index.files for wheel in builds.get(each.sha256, ())
    ]
    return replace(index, files=(*index.files, *built))


def _built_file(source: IndexFile, wheel: BuiltWheel) -> IndexFile:
    """The path names the hash of the source: a lock file ties the wheel to the source."""
    return replace(
        source,
        filename=wheel.filename,
        url=f"{FILES_URL}/{BUILT}/{source.sha256}/{wheel.filename}",
        sha256=wheel.sha256,
        is_wheel=True,
        size=wheel.size,
        metadata_sha256=None,
        source=source,
    )


def project_facts(index: ProjectIndex) -> Project:
    """What the verdict needs to know of the project."""
    by_version: dict[str, list[IndexFile]] = {}
    for each in index.files:
        by_version.setdefault(each.version, []).append(each)
    releases = {version: _release(version, files) for version, files in by_version.items()}
    return Project(Ecosystem.PYPI, index.name, releases, index.status)


def _release(version: str, files: Sequence[IndexFile]) -> Release:
    built = [each for each in files if each.source is not None]
    files = [each for each in files if each.source is None]
    times = [each.uploaded for each in files if each.uploaded]
    wheels = [each for each in files if each.is_wheel]
    marked = [bool(each.provenance) for each in files]
    return Release(
        version,
        # The newest file counts: a file can be added to an old version (PyPI allows that).
        uploaded=max(times) if len(times) == len(files) else None,
        is_yanked=all(each.yanked is not None for each in files),
        has_built_file=bool(wheels),
        has_own_build=bool(built),
        # Of every file: a stolen upload token can add a file to an attested version.
        has_provenance=all(marked) if times or any(marked) else None,
    )


def filter_index(
    index: ProjectIndex, versions: Collection[str], *, built: Collection[str] = ()
) -> ProjectIndex:
    """Only the wheels of these versions. No source archive: a package manager would build it in a
    cell with network (PKG-3). Wheels that Cellwall has built only for the versions in `built`."""
    kept = tuple(
        each
        for each in index.files
        if each.is_wheel
        and each.yanked is None
        and each.version in (versions if each.source is None else built)
    )
    return replace(index, files=kept)


def render_json(index: ProjectIndex) -> bytes:
    """The index as PEP 691 JSON, API version 1.1 (PEP 700)."""
    files = [_render_file(each) for each in index.files]
    versions = sorted({each.version for each in index.files})
    document = {
        "meta": {"api-version": "1.1"},
        "name": index.name,
        "versions": versions,
        "files": files,
    }
    return json.dumps(document).encode()


def _render_file(each: IndexFile) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": each.filename,
        "url": each.url,
        "hashes": {"sha256": each.sha256},
    }
    if each.size is not None:
        entry["size"] = each.size
    if each.uploaded is not None:
        # Not strftime: that writes the year 517 in three digits, which no reader accepts.
        time = each.uploaded.isoformat(timespec="microseconds")
        entry["upload-time"] = time.replace("+00:00", "Z")
    if each.requires_python:
        entry["requires-python"] = each.requires_python
    if each.metadata_sha256:
        entry["core-metadata"] = {"sha256": each.metadata_sha256}
    return entry


def render_html(index: ProjectIndex) -> bytes:
    """The index as a PEP 503 page."""
    lines = ["<!DOCTYPE html>", "<html><body>"]
    for each in index.files:
        attributes = f' href="{html.escape(each.url)}#sha256={each.sha256}"'
        if each.requires_python:
            attributes += f' data-requires-python="{html.escape(each.requires_python)}"'
        if each.metadata_sha256:
            attributes += f' data-core-metadata="sha256={each.metadata_sha256}"'
        lines.append(f"<a{attributes}>{html.escape(each.filename)}</a><br>")
    return "\n".join([*lines, "</body></html>", ""]).encode()
