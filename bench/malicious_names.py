"""Write the malicious versions that Cellwall ships (src/cellwall/packages/data).

npm: the list in hulud-party-scanner, which names the exact versions that the Shai-Hulud worms of
2025 and the attackers of axios (March 2026) published, from public reports. The list begins as
that of Cobenian/shai-hulud-detect (MIT). Its licences are in data/NOTICE.md. The package states
no date: the day is that of the commit with this version.

PyPI: the category `malicious` of kam193/package-campaigns, whose author checks each package by
hand; from a clone with the commit named here, of which the day is the date. Its other categories
(tests of intruders, spam, tools) are not used: they name packages that do no harm.

    .venv/bin/python bench/malicious_names.py
    .venv/bin/python bench/malicious_names.py --campaigns CLONE
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from popular_names import read_json, read_url, write_list

from cellwall.core.errors import BadInput
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.osv import one_spelling
from cellwall.packages.popular import popular_rank

_REGISTRY = "https://registry.npmjs.org"
_PACKAGE = "hulud-party-scanner"
_VERSION = "1.5.0"
_DAY = "2026-04-06"
_LICENCE = "ISC"
_SHA256 = "c1fa1ae5853f1f4c7609ed5daf45c6596dd1c6fe15d4642dcc62edbffaa85f8a"
_LIST = "package/compromised-libs.txt"

_CAMPAIGNS = "kam193/package-campaigns"
_COMMIT = "f647f99b6f49301eeec989ac47218ae645d184c5"
_COMMIT_DAY = "2026-08-22"
_TERMS = "free with attribution"
_FOLDER = "pypi/packages/malicious/json"
_FOLDER_SHA256 = "50d24cf480ffbf3e53ef811d1bbb6804b3f2be5c3fa662958791827c2603f7d6"
"""Of `git archive --format=tar`."""

Listed = dict[str, set[str]]
"""Versions by canonical name."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=Path, metavar="CLONE", help=f"of {_CAMPAIGNS}")
    clone = parser.parse_args().campaigns
    if clone is None:
        head = f"# {_DAY} {_PACKAGE} {_VERSION} ({_LICENCE})\n# sha256 {_SHA256}\n"
        write(Ecosystem.NPM, head, npm_versions())
    else:
        head = (
            f"# {_COMMIT_DAY} {_CAMPAIGNS} {_COMMIT[:12]} ({_TERMS})\n# sha256 {_FOLDER_SHA256}\n"
        )
        write(Ecosystem.PYPI, head, pypi_versions(clone))


def write(ecosystem: Ecosystem, head: str, listed: Listed) -> None:
    kept = {name: found for name, found in listed.items() if not is_whole(ecosystem, name, found)}
    text = head + "".join(f"{name} {' '.join(sorted(kept[name]))}\n" for name in sorted(kept))
    output = write_list(f"malicious-{ecosystem.value}", text)
    count = sum(map(len, kept.values()))
    size = output.stat().st_size
    print(f"{output.name}: {count:,} versions of {len(kept):,} packages, {size:,} bytes")


def npm_versions() -> Listed:
    tarball = read_url(f"{_REGISTRY}/{_PACKAGE}/-/{_PACKAGE}-{_VERSION}.tgz")
    check_hash(f"{_PACKAGE} {_VERSION}", tarball, _SHA256)
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        member = archive.extractfile(_LIST)
        assert member is not None
        return parse(member.read().decode())


def parse(text: str) -> Listed:
    """The versions by name. A line without a version would deny a package that is harmless now."""
    listed: Listed = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        named, _, version = line.rpartition(":")
        try:
            name = canonical_name(Ecosystem.NPM, named)
        except BadInput:
            print(f"left out, no name of npm: {line}")
            continue
        if not version[:1].isdigit() or any(each.isspace() for each in version):
            print(f"left out, no version: {line}")
            continue
        listed.setdefault(name, set()).add(version)
    return listed


def pypi_versions(clone: Path) -> Listed:
    """Packages without versions are left out, for the same reason."""
    words = ("git", "-C", str(clone), "archive", "--format=tar", _COMMIT, _FOLDER)
    folder = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    check_hash(f"{_FOLDER} of {_CAMPAIGNS}", folder, _FOLDER_SHA256)
    listed: Listed = {}
    with tarfile.open(fileobj=io.BytesIO(folder)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is None:
                continue
            name, versions = package_in(json.loads(file.read()))
            if versions:
                listed.setdefault(name, set()).update(versions)
            else:
                print(f"left out, no version: {name}")
    return listed


def package_in(entry: Mapping[str, object]) -> tuple[str, set[str]]:
    """The canonical name in a file of the campaigns, and its versions."""
    name, versions = entry["name"], entry["affected_versions"]
    assert isinstance(name, str)
    assert isinstance(versions, list)
    spelled = {one_spelling(Ecosystem.PYPI, str(each)) for each in versions}
    return canonical_name(Ecosystem.PYPI, name), spelled


def check_hash(what: str, content: bytes, expected: str) -> None:
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise SystemExit(f"{what} has the SHA-256 {found}, not {expected}")


def is_whole(ecosystem: Ecosystem, name: str, versions: set[str]) -> bool:
    """Whether the list names every version of a popular package, which it must never deny."""
    if popular_rank(ecosystem, name) is None:
        return False
    if ecosystem is Ecosystem.NPM:
        published = set(read_json(f"{_REGISTRY}/{name.replace('/', '%2f')}")["versions"])
    else:
        releases = read_json(f"https://pypi.org/pypi/{name}/json")["releases"]
        published = {one_spelling(ecosystem, each) for each in releases}
    if is_denied := published <= versions:
        print(f"left out, every version of a popular package: {name}")
    return is_denied


if __name__ == "__main__":
    main()
