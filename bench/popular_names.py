"""Write the ranked package names that Cellwall ships (src/cellwall/packages/data).

PyPI: the list in the newest guarddog wheel, which its authors take from public download counts.
npm: monthly downloads of every package, from the newest `download-counts` tarball.

    .venv/bin/python bench/popular_names.py [--pypi 15000] [--npm 20000]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import re
import tarfile
import urllib.request
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.packages.names import Ecosystem, canonical_name

_PACKAGES = Path(__file__).parent.parent / "src/cellwall/packages"
_GUARDDOG_LIST = "guarddog/analyzer/metadata/resources/top_pypi_packages.json"
_MAX_BYTES = 256 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pypi", type=int, default=15_000, help="names of PyPI (default %(default)s)"
    )
    parser.add_argument(
        "--npm", type=int, default=20_000, help="names of npm (default %(default)s)"
    )
    options = parser.parse_args()
    write(Ecosystem.PYPI, *pypi_names(), options.pypi)
    write(Ecosystem.NPM, *npm_names(), options.npm)


def write(ecosystem: Ecosystem, names: list[str], source: str, count: int) -> None:
    canonical: dict[str, None] = {}
    for name in names:
        try:
            canonical[canonical_name(ecosystem, name)] = None
        except BadInput:
            continue  # names from before the registry had rules
        if len(canonical) == count:
            break
    text = f"# {source}\n" + "\n".join(canonical) + "\n"
    path = write_list(f"popular-{ecosystem.value}", text)
    print(f"{path.name}: {len(canonical):,} names, {path.stat().st_size:,} bytes; {source}")


def pypi_names() -> tuple[list[str], str]:
    described = read_json("https://pypi.org/pypi/guarddog/json")
    wheel = next(each for each in described["urls"] if each["packagetype"] == "bdist_wheel")
    with zipfile.ZipFile(io.BytesIO(read_url(wheel["url"]))) as archive:
        listed = json.loads(
            archive.read("guarddog/analyzer/metadata/resources/top_pypi_packages.json")
        )
    day = datetime.fromtimestamp(listed["downloaded_timestamp"], UTC).date()
    return listed["packages"], f"{day} guarddog {described['info']['version']} (Apache-2.0)"


def npm_names() -> tuple[list[str], str]:
    described = read_json("https://registry.npmjs.org/download-counts/latest")
    with tarfile.open(fileobj=io.BytesIO(read_url(described["dist"]["tarball"]))) as archive:
        member = archive.extractfile("package/counts.json")
        assert member is not None
        counts: dict[str, Any] = json.load(member)
    version = described["version"]
    digits = version.split(".")[1]
    day = f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
    ranked = sorted((n for n in counts if isinstance(counts[n], int)), key=lambda n: -counts[n])
    return ranked, f"{day} download-counts {version} (MIT)"


def write_list(name: str, text: str) -> Path:
    """Store a shipped list, and its hash where Cellwall checks it."""
    path = _PACKAGES / "data" / f"{name}.txt.xz"
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    pins = _PACKAGES / "shipped_lists.py"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    place = rf'(?<="{name}": ")\w*'
    pins.write_text(re.sub(place, digest, pins.read_text("utf-8")), "utf-8")
    return path


def read_json(url: str) -> Any:
    return json.loads(read_url(url))


def read_url(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as reply:
        data: bytes = reply.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SystemExit(f"{url}: more than {_MAX_BYTES} bytes")
    return data


if __name__ == "__main__":
    main()
