"""`./dev bench packages`: names, verdicts, and a filtered index beside the same index unfiltered.

With `--data FOLDER` (typosquats.csv, malicious_pypi_names.txt, top-pypi-packages.min.json) also the
rates of detection.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import statistics
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import anyio
from package_installs import measure_installs

from cellwall.core.errors import BadInput
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.popular import name_index, popular_names
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.downloads import RegistryDocument
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.pypi import JSON_TYPE
from cellwall.packages.registry.pypi_registry import PypiRegistry
from cellwall.packages.registry.service import RegistryService

FILES = 2000
_OLD = "2020-01-01T00:00:00.000000Z"


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    del quiet
    with tempfile.TemporaryDirectory(prefix="cellwall-packages-") as folder:
        names = data_names()
        feed = build_feed(folder, names["malicious"])
        judge = PackageJudge(feed, PackageRules())
        figures = {**measure_names(rounds), **measure_verdicts(judge, rounds)}
        figures |= anyio.run(measure_index, folder, rounds)
        figures |= measure_installs(min(rounds, 5))
        if names["pairs"]:
            figures |= measure_detection(judge, names)
    return figures


def measure_names(rounds: int) -> dict[str, Any]:
    index = name_index(Ecosystem.PYPI)
    ranked = popular_names(Ecosystem.PYPI).names
    unknown = [f"{name[:-1]}x" for name in ranked[: 50 * rounds]]
    started = time.process_time()
    for name in unknown:
        index.resemblances(name)
    seconds = time.process_time() - started
    return {"name_checks_per_s": round(len(unknown) / seconds)}


def measure_verdicts(judge: PackageJudge, rounds: int) -> dict[str, Any]:
    taken = []
    for name in popular_names(Ecosystem.PYPI).names[: 20 * rounds]:
        started = time.perf_counter()
        judge.judge_name(Ecosystem.PYPI, name)
        taken.append(time.perf_counter() - started)
    return {"verdict_warm_p50_ms": round(statistics.median(taken) * 1000, 3)}


class Plain:
    """A registry that answers from memory."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def get(self, url: str, *, accept: str, max_bytes: int) -> RegistryDocument:
        del url, accept, max_bytes
        return RegistryDocument(200, JSON_TYPE, self.body)


async def _show(event: object) -> None:
    print(event)


async def measure_index(folder: str, rounds: int) -> dict[str, Any]:
    """A cached filtered index, and the parse of the same document by its client."""
    files = [
        {
            "filename": f"zebra_atlas-{number}.0-py3-none-any.whl",
            "url": f"https://files.pythonhosted.org/packages/zebra_atlas-{number}.0-py3-none-any.whl",
            "hashes": {"sha256": hashlib.sha256(str(number).encode()).hexdigest()},
            "upload-time": _OLD,
        }
        for number in range(FILES)
    ]
    upstream = Plain(json.dumps({"name": "zebra-atlas", "files": files}).encode())
    rules = PackageJudge(
        Feed(os.path.join(folder, "none")), PackageRules(without_feed=Verdict.ALLOW)
    )
    service = RegistryService(
        {"pypi.org": PypiRegistry()},
        upstream,
        rules,
        ArtifactStore(folder),
        inspect=lambda *_: None,
    )
    request = RegistryRequest("GET", "pypi.org", "/simple/zebra-atlas/", JSON_TYPE)
    started = time.perf_counter()
    first = await service.respond(request, _show)
    cold_s = time.perf_counter() - started
    filtered, plain = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        reply = await service.respond(request, _show)
        json.loads(reply.body)
        filtered.append(time.perf_counter() - started)
        started = time.perf_counter()
        json.loads((await upstream.get("", accept="", max_bytes=0)).body)
        plain.append(time.perf_counter() - started)
    assert first.status == 200
    return {
        "index_2000_files_first_ms": round(cold_s * 1000, 1),
        "index_2000_files_cached_over_direct": round(
            statistics.median(filtered) / statistics.median(plain), 2
        ),
    }


def data_names() -> dict[str, list[Any]]:
    folder = os.environ.get("CELLWALL_GUARD_DATA", "")
    names: dict[str, list[Any]] = {"pairs": [], "malicious": [], "top": []}
    if not folder or not Path(folder, "typosquats.csv").exists():
        return names
    with Path(folder, "typosquats.csv").open() as opened:
        names["pairs"] = [
            (row["malicious_package"], row["target_package"])
            for row in csv.DictReader(opened)
            if row["ecosystem"] == "pypi"
        ]
    names["malicious"] = Path(folder, "malicious_pypi_names.txt").read_text().splitlines()
    top = json.loads(Path(folder, "top-pypi-packages.min.json").read_text())
    names["top"] = [row["project"] for row in top["rows"]]
    return names


def build_feed(folder: str, malicious: list[str]) -> Feed:
    feed = Feed(os.path.join(folder, "feed"))
    path = os.path.join(folder, "all.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(malicious or ["evil"]):
            package = {"ecosystem": "PyPI", "name": name}
            record = {"id": f"MAL-{number}", "modified": _OLD, "affected": [{"package": package}]}
            archive.writestr(f"{number}.json", json.dumps(record))
    feed.import_archive(path, source="bench")
    return feed


def measure_detection(judge: PackageJudge, names: dict[str, list[Any]]) -> dict[str, Any]:
    def flagged(name: str) -> bool:
        try:
            canonical = canonical_name(Ecosystem.PYPI, name)
        except BadInput:
            return True
        return judge.judge_name(Ecosystem.PYPI, canonical).verdict is not Verdict.ALLOW

    index = name_index(Ecosystem.PYPI)

    def resembles(name: str) -> bool:
        return bool(index.resemblances(canonical_name(Ecosystem.PYPI, name)))

    def percent(hits: int, total: int) -> float:
        return round(100 * hits / total, 2)

    malicious, top = names["malicious"], names["top"]
    squats = [name for name, _ in names["pairs"]]
    return {
        "malicious_refused_percent": percent(sum(map(flagged, malicious)), len(malicious)),
        "typosquats_flagged_percent": percent(sum(map(resembles, squats)), len(squats)),
        "top_packages_flagged_percent": percent(sum(map(resembles, top)), len(top)),
    }
