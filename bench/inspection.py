"""Inspects real artifacts of popular packages: how often is one asked about or denied?

    .venv/bin/python bench/inspection.py FOLDER [--download] [--show]

FOLDER is a cache outside of the repository. The names are the head of the shipped rankings and
a sample of their tail; every third name is held apart from tuning and reported by itself. Each
artifact is judged twice: with the rank of its package, and as if nobody knew the package.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_sdist_filename, parse_wheel_filename

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.inspection.artifact import inspect_artifact
from cellwall.packages.names import Ecosystem
from cellwall.packages.popular import name_index, popular_names

PYPI, NPM = Ecosystem.PYPI, Ecosystem.NPM
HEAD = {PYPI: 150, NPM: 80}
TAIL = {PYPI: 70, NPM: 50}
SOURCES = 40
"""Also the source archives of so many of the first names."""
MAX_BYTES = 40 * 2**20
_SEED = 20261117


@dataclass(frozen=True, slots=True)
class Sample:
    """One artifact of the cache."""

    ecosystem: Ecosystem
    name: str
    version: str
    path: Path
    is_held_apart: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--download", action="store_true", help="fill the cache first")
    parser.add_argument("--max-mb", type=float, default=40.0, help="skip larger artifacts")
    parser.add_argument("--show", action="store_true", help="print every finding but notes")
    options = parser.parse_args()
    if options.download:
        download(options.folder)
    measure(options.folder, is_shown=options.show, max_bytes=int(options.max_mb * 1e6))


def chosen_names(ecosystem: Ecosystem) -> list[str]:
    """The most popular names, and a sample of the rest."""
    ranked = popular_names(ecosystem).names
    head = list(ranked[: HEAD[ecosystem]])
    return head + random.Random(_SEED).sample(ranked[2000:], TAIL[ecosystem])  # a sample


def download(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for ecosystem in (PYPI, NPM):
        for number, name in enumerate(chosen_names(ecosystem)):
            for kind, choose in _KINDS[ecosystem].items():
                if kind == "source" and number >= SOURCES:
                    continue
                described = folder / f"{ecosystem.value}-{kind}-{name.replace('/', '+')}.json"
                if described.exists():
                    continue
                try:
                    version, url = choose(name)
                    target = folder / url.rpartition("/")[2]
                    target.write_bytes(_get(url))
                except (OSError, LookupError, ValueError) as error:
                    print(f"{ecosystem.value} {name}: {error}", file=sys.stderr)
                    continue
                entry = {"name": name, "version": version, "file": target.name, "number": number}
                described.write_text(json.dumps(entry))


def choose_wheel(name: str) -> tuple[str, str]:
    """A wheel for any platform, or else one for this one."""
    files = _json(f"https://pypi.org/pypi/{name}/json")["urls"]
    wheels = [each for each in files if each["filename"].endswith(".whl")]
    wanted = [each for each in wheels if "none-any" in each["filename"]]
    wanted += [each for each in wheels if "cp312-manylinux" in each["filename"]]
    wanted += [each for each in wheels if "x86_64" in each["filename"]]
    chosen = _first_small(wanted + wheels)
    return str(parse_wheel_filename(chosen["filename"])[1]), _url(name, chosen)


def choose_source(name: str) -> tuple[str, str]:
    files = _json(f"https://pypi.org/pypi/{name}/json")["urls"]
    chosen = _first_small([each for each in files if each["filename"].endswith(".tar.gz")])
    return str(parse_sdist_filename(chosen["filename"])[1]), _url(name, chosen)


def _first_small(files: list[dict[str, Any]]) -> dict[str, Any]:
    found = next((each for each in files if each["size"] <= MAX_BYTES), None)
    if found is None:
        raise LookupError("no file of a size that is measured")
    return found


def _url(name: str, chosen: dict[str, Any]) -> str:
    # Mirrors name files relative to the page of the project.
    return urllib.parse.urljoin(f"https://pypi.org/simple/{name}/", str(chosen["url"]))


def choose_tarball(name: str) -> tuple[str, str]:
    packument = _json(f"https://registry.npmjs.org/{name.replace('/', '%2f')}")
    version = packument["dist-tags"]["latest"]
    return str(version), str(packument["versions"][version]["dist"]["tarball"])


_KINDS: dict[Ecosystem, dict[str, Any]] = {
    PYPI: {"wheel": choose_wheel, "source": choose_source},
    NPM: {"tarball": choose_tarball},
}


def _json(url: str) -> Any:
    return json.loads(_get(url))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # https only
        return answer.read(4 * MAX_BYTES)


def samples(folder: Path) -> Iterator[Sample]:
    for described in sorted(folder.glob("*.json")):
        entry = json.loads(described.read_text())
        ecosystem = NPM if described.name.startswith("npm-") else PYPI
        yield Sample(
            ecosystem,
            entry["name"],
            entry["version"],
            folder / entry["file"],
            is_held_apart=entry["number"] % 3 == 2,
        )


def measure(folder: Path, *, is_shown: bool, max_bytes: int) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    total_bytes, total_s, slowest = 0, 0.0, (0.0, "")
    for sample in samples(folder):
        size = sample.path.stat().st_size
        if size > max_bytes:
            continue
        group = f"{sample.ecosystem.value} {'held apart' if sample.is_held_apart else 'tuned'}"
        started = time.process_time()
        unknown = inspect(sample, None)
        taken = time.process_time() - started
        ranked = unknown
        if unknown.verdict is not Verdict.ALLOW:
            ranked = inspect(sample, name_index(sample.ecosystem).rank(sample.name))
        counts[group, "ranked", ranked.verdict.name] += 1
        counts[group, "unknown", unknown.verdict.name] += 1
        if is_shown:
            show(sample, unknown, ranked)
        total_bytes, total_s = total_bytes + size, total_s + taken
        slowest = max(slowest, (taken, f"{sample.path.name} ({size / 1e6:.1f} MB)"))
    print(json.dumps({" / ".join(key): count for key, count in sorted(counts.items())}, indent=1))
    print(f"{total_bytes / 1e6 / total_s:.1f} MB/s of processor time; slowest {slowest}")


def inspect(sample: Sample, rank: int | None) -> PackageVerdict:
    with sample.path.open("rb") as stream:
        return inspect_artifact(
            sample.ecosystem, sample.name, sample.version, sample.path.name, stream, rank
        )


def show(sample: Sample, unknown: PackageVerdict, ranked: PackageVerdict) -> None:
    for reason, weighed in zip(unknown.reasons, ranked.reasons, strict=True):
        if reason.verdict is not Verdict.ALLOW:
            held = "*" if sample.is_held_apart else " "
            verdicts = f"{weighed.verdict.name}/{reason.verdict.name}"
            name = f"{sample.ecosystem.value}:{sample.name}"
            print(f"{held} {verdicts:11} {name:36} {reason.code}: {reason.text[:240]}", flush=True)


if __name__ == "__main__":
    main()
