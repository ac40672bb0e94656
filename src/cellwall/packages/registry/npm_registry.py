"""npm's registry, or a mirror of it, as a cell reaches it: `/NAME` and `/NAME/-/FILE.tgz`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.registry.downloads import Artifact, RegistryDocument, Upstream
from cellwall.packages.registry.judged_index import JudgedIndex
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.npm import (
    ABBREVIATED_TYPE,
    FULL_TYPE,
    filter_packument,
    parse_packument,
    project_facts,
    render_packument,
    strong_integrity,
)
from cellwall.packages.registry.pypi import BadIndex
from cellwall.packages.registry.service import MAX_INDEX_BYTES
from cellwall.packages.registry.shared_work import Task, run_bounded

_PUBLIC_URL = "https://registry.npmjs.org"


class NpmRegistry:
    """Implements `Registry`. `base` is the URL of the registry.

    A cell sees the public name whatever mirror is behind it, and needs no setting.
    """

    ecosystem = Ecosystem.NPM
    revision = 0
    hosts = frozenset({"registry.npmjs.org", "registry.npmjs.com", "registry.yarnpkg.com"})
    """The others are names of the first; Yarn asks the last one."""

    def __init__(self, base: str = _PUBLIC_URL) -> None:
        self._base = base.rstrip("/")

    def index_name(self, request: RegistryRequest) -> str | None:
        """The package of `/NAME` or `/@SCOPE/NAME`; not of `/-/…`, npm's own services."""
        path = request.decoded_path.strip("/")
        is_name = path.count("/") == path.startswith("@")
        return _checked_name(path) if path and is_name else None

    def artifact_name(self, request: RegistryRequest) -> str | None:
        """The package of a tarball's path."""
        name, separator, filename = request.decoded_path.strip("/").partition("/-/")
        is_tarball = name and separator and filename.endswith(".tgz") and "/" not in filename
        return _checked_name(name) if is_tarball else None

    async def load(self, name: str, upstream: Upstream, judge: PackageJudge) -> JudgedIndex:
        documents = await self._fetch(name, upstream)
        return await run_bounded(Task.READ, self._read, name, documents, judge)

    async def _fetch(self, name: str, upstream: Upstream) -> tuple[RegistryDocument, ...]:
        # The full document: the abbreviated one has neither times nor scripts.
        url = f"{self._base}/{quote(name, safe='@')}"
        return (await upstream.get(url, accept=FULL_TYPE, max_bytes=MAX_INDEX_BYTES),)

    def _read(
        self, name: str, documents: Sequence[RegistryDocument], judge: PackageJudge
    ) -> JudgedIndex:
        (document,) = documents
        canonical = canonical_name(self.ecosystem, name)
        if document.status == 404:
            verdict = _of_spelling(judge.judge(self.ecosystem, canonical, None), name)
            return JudgedIndex(name, verdict, {}, {}, _choose_type, {})
        if document.status != 200:
            raise BadIndex(f"the registry answered {document.status} for {name}")
        packument = parse_packument(name, document.body)
        project = replace(project_facts(packument), name=canonical, written=name)
        versions = judge.judge_versions(project)
        allowed = {v for v, verdict in versions.items() if verdict.verdict is Verdict.ALLOW}
        shown = filter_packument(packument, allowed)
        artifacts = _artifacts(name, shown["versions"])
        pages = {
            FULL_TYPE: render_packument(shown, is_abbreviated=False),
            ABBREVIATED_TYPE: render_packument(shown, is_abbreviated=True),
        }
        verdict = judge.judge(self.ecosystem, canonical, project)
        digests = {each: _digests(entry) for each, entry in packument.versions.items()}
        return JudgedIndex(name, verdict, versions, artifacts, _choose_type, pages, digests)


def _checked_name(name: str) -> str:
    """As it is written: `JSONStream` and `jsonstream` are two packages, judged as one name."""
    canonical_name(Ecosystem.NPM, name)
    return name


def _of_spelling(verdict: PackageVerdict, name: str) -> PackageVerdict:
    """The verdict on a name that the registry does not have with these capital letters."""
    if name == verdict.name:
        return verdict
    text = f"{name} is not on npm; did you mean {verdict.name}?"
    reasons = tuple(
        replace(each, text=text) if each.code == "unknown" else each for each in verdict.reasons
    )
    return replace(verdict, reasons=reasons, suggestion=verdict.name)


def _choose_type(accept: str) -> str:
    return ABBREVIATED_TYPE if ABBREVIATED_TYPE in accept else FULL_TYPE


def _digests(entry: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    strong = (each for each in entry["dist"]["integrity"].split() if each.startswith("sha512-"))
    return frozenset(
        ("sha512", base64.b64decode(each.removeprefix("sha512-")).hex()) for each in strong
    )


def _artifacts(name: str, versions: dict[str, dict[str, Any]]) -> dict[str, Artifact]:
    """By path; the versions then name the public URL of each."""
    found: dict[str, Artifact] = {}
    for version, entry in versions.items():
        url = entry["dist"]["tarball"]
        integrity = strong_integrity(entry["dist"]["integrity"])
        digest = base64.b64decode(integrity.removeprefix("sha512-")).hex()
        filename = f"{name.rpartition('/')[2]}-{version}.tgz"
        path = f"/{name}/-/{filename}"
        found[path] = Artifact(url, filename, version, "sha512", digest)
        # The hash that was judged is the only one that the client accepts.
        dist = {**entry["dist"], "tarball": _PUBLIC_URL + path, "integrity": integrity}
        versions[version] = {**entry, "dist": dist}
    return found
