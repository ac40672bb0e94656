"""The packages that a session got, as an SBOM (CycloneDX 1.6) and as lock files (PKG-1, PKG-5).

The registry proxy knows each artifact that it served, with the hash under which the artifact was
judged: the inventory lists exactly those, whatever installer asked for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cellwall.packages.locks.model import Lock, LockedFile, LockedPackage, package_url
from cellwall.packages.names import Ecosystem
from cellwall.packages.sbom import InstallCause, render_lock_sbom


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One artifact that was served. `cause` is the id of the action that asked for it."""

    ecosystem: Ecosystem
    name: str
    version: str
    filename: str
    url: str
    algorithm: str
    digest: str
    size: int
    cause: str = ""
    audit_id: str = ""
    """The audit record of the artifact."""
    source: LockedFile | None = None
    """The source archive from which Cellwall built the wheel (PKG-3)."""

    @property
    def purl(self) -> str:
        return package_url(self.ecosystem, self.name, self.version)


def installed_lock(packages: Iterable[InstalledPackage]) -> Lock:
    """The artifacts as a lock: one entry for each package and version, with all of its files."""
    merged: dict[str, LockedPackage] = {}
    for each in sorted(set(packages), key=lambda each: (each.purl, each.filename)):
        file = LockedFile(each.filename, each.url, ((each.algorithm, each.digest),))
        new = (file,) if each.source is None else (file, each.source)
        known = merged.get(each.purl)
        files = new if known is None else tuple(dict.fromkeys((*known.files, *new)))
        merged[each.purl] = LockedPackage(
            each.purl, each.ecosystem, each.name, each.version, files, is_direct=True
        )
    return Lock("record", tuple(merged.values()), has_graph=False)


def render_sbom(
    packages: Iterable[InstalledPackage],
    *,
    subject: str = "packages",
    now: datetime | None = None,
) -> bytes:
    """The inventory as CycloneDX JSON, with the action and the audit record of each package."""
    listed = list(packages)
    causes: dict[str, dict[InstallCause, None]] = {}
    for each in listed:
        if each.cause:
            causes.setdefault(each.purl, {})[InstallCause(each.cause, each.audit_id)] = None
    found = {purl: tuple(each) for purl, each in causes.items()}
    return render_lock_sbom(installed_lock(listed), subject=subject, causes=found, now=now)


def render_pylock(packages: Iterable[InstalledPackage]) -> bytes:
    """The wheels of PyPI among the packages as `pylock.toml` (PEP 751)."""
    by_package: dict[tuple[str, str], list[InstalledPackage]] = {}
    for each in sorted(set(packages), key=lambda each: (each.name, each.version, each.filename)):
        if each.ecosystem is Ecosystem.PYPI:
            by_package.setdefault((each.name, each.version), []).append(each)
    lines = ['lock-version = "1.0"', 'created-by = "cellwall"']
    for (name, version), files in by_package.items():
        lines += ["", "[[packages]]", f"name = {_quoted(name)}", f"version = {_quoted(version)}"]
        wheels = [_table(each) for each in files if each.filename.endswith(".whl")]
        if wheels:
            lines += ["wheels = [", *(f"  {each}," for each in wheels), "]"]
        sources = [_table(each) for each in files if not each.filename.endswith(".whl")]
        sources += [_source_table(each.source) for each in files if each.source is not None]
        if sources:
            lines.append(f"sdist = {sources[0]}")
    return ("\n".join(lines) + "\n").encode()


def render_requirements(packages: Iterable[InstalledPackage]) -> bytes:
    """The packages of PyPI as `requirements.txt` with the hash of each file, which pip and uv
    install with `--require-hashes`. Of two versions of a package the later one counts."""
    newest: dict[str, str] = {}
    hashes: dict[tuple[str, str], dict[str, None]] = {}
    for each in packages:
        if each.ecosystem is Ecosystem.PYPI:
            newest[each.name] = each.version
            files = hashes.setdefault((each.name, each.version), {})
            # A wheel that was built here is on no index: the hash is that of its source.
            known = [(each.algorithm, each.digest)] if each.source is None else each.source.hashes
            files |= {f"--hash={algorithm}:{digest}": None for algorithm, digest in known}
    lines = [
        " \\\n    ".join([f"{name}=={version}", *hashes[name, version]])
        for name, version in sorted(newest.items())
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _table(package: InstalledPackage) -> str:
    fields = f"name = {_quoted(package.filename)}, url = {_quoted(package.url)}"
    hashes = f"hashes = {{ {package.algorithm} = {_quoted(package.digest)} }}"
    return f"{{ {fields}, size = {package.size}, {hashes} }}"


def _source_table(source: LockedFile) -> str:
    fields = f"name = {_quoted(source.filename)}, url = {_quoted(source.url)}"
    hashes = ", ".join(f"{kind} = {_quoted(value)}" for kind, value in source.hashes)
    return f"{{ {fields}, size = {source.size}, hashes = {{ {hashes} }} }}"


def _quoted(text: str) -> str:
    """A TOML basic string. TOML has neither JSON's surrogates nor a plain DEL, and a registry may
    name a URL with any character."""
    plain = text.encode("utf-8", "replace").decode()
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
