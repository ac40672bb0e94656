"""PyPI, or a mirror of it, as a cell reaches it: `/simple/NAME/` and the files it names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from packaging.version import InvalidVersion, Version

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules, PackageVerdict
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.registry.built_wheels import BuiltWheels
from cellwall.packages.registry.downloads import (
    METADATA_SUFFIX,
    Artifact,
    RegistryDocument,
    Upstream,
)
from cellwall.packages.registry.judged_index import JudgedIndex, SourceArchive, denies_all
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.pypi import (
    FILES_URL,
    HTML_TYPE,
    JSON_TYPE,
    BadIndex,
    IndexFile,
    ProjectIndex,
    add_built_wheels,
    add_upload_times,
    filter_index,
    parse_index,
    parse_license,
    project_facts,
    render_html,
    render_json,
    split_filename,
)
from cellwall.packages.registry.service import MAX_INDEX_BYTES
from cellwall.packages.registry.shared_work import Task, run_bounded
from cellwall.packages.verdict import answer_by_pin, may_be_built

_ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"


_SIMPLE = "/simple/"


class PypiRegistry:
    """Implements `Registry`. `base` is the URL of the index without `/simple`.

    A cell sees the public names whatever mirror is behind them: pip and uv ask `pypi.org` without
    any setting, and the index names the files below `files.pythonhosted.org`.
    """

    ecosystem = Ecosystem.PYPI
    hosts = frozenset({"pypi.org", "pypi.python.org", "files.pythonhosted.org"})

    def __init__(
        self, base: str = "https://pypi.org", *, builds: BuiltWheels | None = None
    ) -> None:
        """`builds`: the wheels that Cellwall has built, which the index shows."""
        self._base = base.rstrip("/")
        self._builds = builds

    @property
    def revision(self) -> int:
        return 0 if self._builds is None else self._builds.revision

    def index_name(self, request: RegistryRequest) -> str | None:
        """The project of `/simple/NAME/`."""
        path = request.decoded_path
        if not path.startswith(_SIMPLE):
            return None
        name = path.removeprefix(_SIMPLE).strip("/")
        return canonical_name(self.ecosystem, name) if name and "/" not in name else None

    def artifact_name(self, request: RegistryRequest) -> str | None:
        """The project in the name of a wheel, a source archive, or the metadata of a wheel."""
        filename = request.decoded_path.rpartition("/")[2]
        found = split_filename(filename.removesuffix(METADATA_SUFFIX))
        return None if found is None else found[0]

    async def load(self, name: str, upstream: Upstream, judge: PackageJudge) -> JudgedIndex:
        documents = await self._fetch(name, upstream, judge.rules)
        return await run_bounded(Task.READ, self._read, name, documents, judge)

    async def _fetch(
        self, name: str, upstream: Upstream, rules: PackageRules
    ) -> tuple[RegistryDocument, ...]:
        url = f"{self._base}/simple/{name}/"
        document = await upstream.get(url, accept=_ACCEPT, max_bytes=MAX_INDEX_BYTES)
        has_times = b'"upload-time"' in document.body
        if document.status != 200 or (has_times and not rules.needs_licenses):
            return (document,)
        # The older API has licenses, of the newest version, and times. Without any time, no version
        # could be known to be old enough.
        url = f"{self._base}/pypi/{name}/json"
        older = await upstream.get(url, accept="application/json", max_bytes=MAX_INDEX_BYTES)
        return (document, older) if older.status == 200 else (document,)

    def _read(
        self, name: str, documents: Sequence[RegistryDocument], judge: PackageJudge
    ) -> JudgedIndex:
        document, *older = documents
        if document.status == 404:
            verdict = judge.judge(self.ecosystem, name, None)
            return JudgedIndex(name, verdict, {}, {}, _choose_type, {})
        if document.status != 200:
            raise BadIndex(f"the registry answered {document.status} for {name}")
        url = f"{self._base}/simple/{name}/"
        index = parse_index(name, document.body, document.content_type, url)
        if older and not any(each.uploaded for each in index.files):
            index = add_upload_times(index, older[0].body)
        if self._builds is not None:
            index = add_built_wheels(index, self._builds.by_source())
        project = project_facts(index)
        if older and judge.rules.needs_licenses:
            project = replace(project, license=parse_license(name, older[0].body))
        versions = _in_order(judge.judge_versions(project))
        pinned = {each.version for each in index.files if each.sha256 in judge.rules.pinned}
        by_pin = {each for each in pinned if versions[each].verdict is Verdict.ASK}
        versions |= {each: answer_by_pin(versions[each]) for each in by_pin}
        allowed = {v for v, verdict in versions.items() if verdict.verdict is Verdict.ALLOW}
        verdict = judge.judge(self.ecosystem, name, project)
        buildable = {v for v, each in versions.items() if may_be_built(each, judge.rules)}
        if denies_all(verdict):
            buildable.clear()
        kept = filter_index(index, allowed, built=allowed & buildable)
        # The pin covers these bytes alone, not other files of the same version.
        files = [f for f in kept.files if f.version not in by_pin or f.sha256 in judge.rules.pinned]
        kept = replace(kept, files=tuple(files))
        shown = replace(kept, files=tuple(map(_with_public_url, kept.files)))
        page = render_html(shown)
        pages = {JSON_TYPE: render_json(shown), HTML_TYPE: page, "text/html": page}
        if by_pin:
            verdict = answer_by_pin(verdict)
        return JudgedIndex(
            name,
            verdict,
            versions,
            _artifacts(kept),
            _choose_type,
            pages,
            _digests(index),
            _sources(index, buildable),
            f"{FILES_URL}/".encode(),
        )


def _in_order(versions: Mapping[str, PackageVerdict]) -> dict[str, PackageVerdict]:
    """The newest version last (PEP 440): an index lists files by name, or in any other order."""

    def key(version: str) -> tuple[bool, Version]:
        try:
            return True, Version(version)
        except InvalidVersion:
            return False, Version("0")

    return {version: versions[version] for version in sorted(versions, key=key)}


def _choose_type(accept: str) -> str:
    return next((each for each in (JSON_TYPE, HTML_TYPE) if each in accept), "text/html")


def _with_public_url(each: IndexFile) -> IndexFile:
    return replace(each, url=FILES_URL + urlsplit(each.url).path)


def _digests(index: ProjectIndex) -> dict[str, frozenset[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    for each in index.files:
        found.setdefault(each.version, set()).add(("sha256", each.sha256))
    return {version: frozenset(digests) for version, digests in found.items()}


def _sources(index: ProjectIndex, versions: Collection[str]) -> dict[str, SourceArchive]:
    """The source archives that may be built; of several of one version, a tar archive."""
    found: dict[str, SourceArchive] = {}
    for each in sorted(index.files, key=lambda each: each.filename, reverse=True):
        if each.version in versions and not each.is_wheel and each.yanked is None:
            found[each.version] = SourceArchive(_artifact(each), each.requires_python)
    return found


def _artifact(each: IndexFile) -> Artifact:
    return Artifact(
        each.url,
        each.filename,
        each.version,
        "sha256",
        each.sha256,
        each.size,
        each.metadata_sha256,
        None if each.source is None else _artifact(each.source),
    )


def _artifacts(index: ProjectIndex) -> dict[str, Artifact]:
    """By path: the files, and the metadata of wheels where the index has its hash."""
    found: dict[str, Artifact] = {}
    for each in index.files:
        artifact = _artifact(each)
        found[unquote(urlsplit(each.url).path)] = artifact
        if each.metadata_sha256 is not None:
            metadata = replace(
                artifact,
                url=f"{each.url}{METADATA_SUFFIX}",
                filename=f"{each.filename}{METADATA_SUFFIX}",
                digest=each.metadata_sha256,
                size=None,
            )
            found[unquote(urlsplit(metadata.url).path)] = metadata
    return found
