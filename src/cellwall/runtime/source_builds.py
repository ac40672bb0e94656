"""Builds of Python packages from source, in cells without network or secrets (PKG-3).

The steps of one build, after a resolver has found no wheel:
  (1) choose the version: the newest that is allowed and meets the request;
  (2) judge it as for any package manager; ask a person where the verdict asks;
  (3) download the source under the hash of the index, inspect it, record it;
  (4) read the build requirements of `pyproject.toml`, and execute nothing;
  (5) install them as wheels into an environment, in a cell with the registry alone;
  (6) build in a second cell on the same files, without network, variables, secrets or the files of
      the session; where the backend asks for further requirements, start again at (5), once;
  (7) take one wheel of the same name and version, store it under its hash, inspect it;
  (8) record the build, with the hashes of source, wheel and requirements; only then the index of
      the registry proxy shows the wheel.
A process that is killed at any moment leaves no wheel that the index shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader

import anyio

from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError, Denied
from cellwall.core.limits import MIB
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.packages import InstallPackages, package_of
from cellwall.core.ports import InstallCells
from cellwall.core.types import Action
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.inventory import InstalledPackage
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem
from cellwall.packages.registry.built_wheels import BuiltWheel
from cellwall.packages.registry.downloads import Artifact, ArtifactSource
from cellwall.packages.registry.judged_index import JudgedIndex, Refusal
from cellwall.packages.registry.pypi import BadIndex
from cellwall.packages.registry.service import MAX_QUESTIONS
from cellwall.packages.registry.shared_work import SessionBounds
from cellwall.packages.registry.upstream import HttpUpstream
from cellwall.packages.source_builds import BuildRefused, choose_source, read_build
from cellwall.packages.verdict import may_be_built
from cellwall.runtime.build_cells import BuildInput, WheelFile, build_action, run_build
from cellwall.runtime.outcomes import PACKAGES_RULE
from cellwall.runtime.package_record import PackageRecord, SourceBuild
from cellwall.runtime.package_sessions import ActionPackages, PackageSessions
from cellwall.runtime.registries import (
    RegistrySite,
    artifact_store,
    built_wheels,
    inspect_file,
    installed_package,
    registry_sites,
)
from cellwall.sandbox.templates import environments

MAX_SOURCE_BYTES = 256 * MIB
MAX_BUILDS = 20
"""In one installation."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The wheels that were built; `failed` is the cell of the build that failed."""

    built: tuple[str, ...] = ()
    failed: RunResult | None = None


@dataclass(frozen=True, slots=True)
class SourceBuilder:
    """Builds what an installation lacks."""

    settings: Settings
    home: str
    open_judge: Callable[[], PackageJudge]
    record: PackageRecord
    sessions: PackageSessions

    async def build_missing(
        self,
        action: Action,
        operation: InstallPackages,
        cells: InstallCells,
        *,
        before: Collection[str] = (),
    ) -> BuildReport:
        """Build the packages that the action asked the index for and that have no fitting wheel.

        `before`: those that the action has built already.
        """
        names = self.record.buildable(action.id)
        if not names:
            return BuildReport()
        site = registry_sites(self.settings, self.home)["pypi"]
        who = EgressContext(
            action_id=action.id,
            principal=action.principal.name,
            interface=action.principal.interface,
        )
        session = self.sessions.session_of(who, Ecosystem.PYPI, self.open_judge())
        if session is None:
            return BuildReport()
        ranges = {package_of(each).name: _versions_of(each) for each in operation.requirements}
        built: list[str] = []
        async with HttpUpstream(site.origins) as upstream:
            for name in names:
                one = _Build(self, action, cells, site, upstream, session, who, name)
                version = await one.choose(ranges.get(name, ""))
                what = f"{name} {version}"
                if version is None or what in before:
                    continue
                if len(before) + len(built) >= MAX_BUILDS:
                    raise BuildRefused(
                        f"more than {MAX_BUILDS} packages would have to be built from source"
                    )
                failed = await one.build(version)
                if failed is not None:
                    return BuildReport(tuple(built), failed)
                built.append(what)
        return BuildReport(tuple(built))


@dataclass(frozen=True, slots=True)
class _Build:
    """The build of one project."""

    builder: SourceBuilder
    action: Action
    cells: InstallCells
    site: RegistrySite
    upstream: HttpUpstream
    session: ActionPackages
    who: EgressContext
    name: str

    async def choose(self, versions: str) -> str | None:
        """(1)"""
        return choose_source(await self._index(), versions, environments.interpreter().version)

    async def build(self, version: str) -> RunResult | None:
        """None: the index shows the wheel now."""
        source = await self._allowed_source(version)
        with await self._open(source) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_SOURCE_BYTES:
                raise BuildRefused(f"the source is larger than {MAX_SOURCE_BYTES:,} bytes")
            read = partial(
                read_build, stream, source.filename, size, environments.interpreter().version
            )
            system = await anyio.to_thread.run_sync(read)  # (4)
            stream.seek(0)
            content = await anyio.to_thread.run_sync(stream.read)
        action = build_action(self.action)
        archive = installed_package(Ecosystem.PYPI, self.name, source, size, action.id)
        given = BuildInput(self.name, version, source.filename, content, system)
        timeout_s = self.builder.settings.packages.build_timeout_s
        with self.builder.record.keeping(action.id):
            # The record is on the disk before the cell gets the source.
            whose = replace(self.who, action_id=action.id)
            await self.builder.record.note_install(archive, whose)
            result = await run_build(self.cells, action, given, timeout_s=timeout_s)
            if isinstance(result, RunResult):
                return _failure(result, self.name, version)
            await self._take(result, archive, action)
        return None

    async def _index(self) -> JudgedIndex:
        try:
            return await self.site.registry.load(self.name, self.upstream, self.session.judge)
        except BadIndex as error:
            raise CellwallError(str(error), code="CW-PACKAGE-INDEX") from None

    async def _allowed_source(self, version: str) -> Artifact:
        """(2)"""
        index, answer = await self._index(), None
        verdict = self._verdict(index, version)
        for _ in range(MAX_QUESTIONS):
            if verdict is None or verdict.verdict is not Verdict.ASK:
                break
            answer = await self.session.ask(verdict)
            if not answer:
                break
            index = await self._index()
            verdict = self._verdict(index, version)
        if verdict is None or version not in index.sources:
            raise await self._refused(index.versions.get(version, index.verdict))
        if verdict.verdict is not Verdict.ALLOW:
            raise await self._refused(verdict, was_asked=answer is not None)
        if verdict.is_ruled:
            await self.builder.record.note_verdict(verdict, self.who)
        return index.sources[version].artifact

    def _verdict(self, index: JudgedIndex, version: str) -> PackageVerdict | None:
        found = index.versions.get(version)
        return None if found is None else may_be_built(found, self.session.judge.rules)

    async def _refused(self, verdict: PackageVerdict, *, was_asked: bool = False) -> Denied:
        await self.builder.record.note_refusal(verdict, self.who)
        return Denied(Refusal(verdict, was_asked).text, code="CW-PACKAGE-REFUSED")

    async def _open(self, source: Artifact) -> BufferedReader:
        """(3)"""
        files = ArtifactSource(
            artifact_store(self.builder.home),
            self.upstream,
            partial(inspect_file, Ecosystem.PYPI),
            asyncio.Semaphore(),
        )
        bounds = SessionBounds(MAX_SOURCE_BYTES)
        refused = await files.prepare(self.name, source, bounds)
        if refused is not None:
            # The inspection asks about this very file, as for a package manager.
            is_question = refused.verdict is Verdict.ASK
            answer = await self.session.ask(refused) if is_question else None
            if not answer:
                raise await self._refused(refused, was_asked=answer is not None)
        stream = files.open(self.name, source, is_answered=refused is not None)
        if stream is None:
            raise CellwallError("the source was removed while it was read", code="CW-PACKAGE-LOST")
        return stream

    async def _take(self, wheel: WheelFile, source: InstalledPackage, action: Action) -> None:
        """(7), (8)"""
        filename, data = wheel.filename, wheel.content
        built = BuiltWheel(filename, hashlib.sha256(data).hexdigest(), len(data))
        store = artifact_store(self.builder.home)

        def write() -> PackageVerdict | None:
            with store.create("sha256", built.sha256) as writer:
                writer.write(data)
            artifact = Artifact("", filename, source.version, "sha256", built.sha256, built.size)
            stream = store.open("sha256", built.sha256)
            if stream is None:
                raise CellwallError("the wheel was removed while it was read")
            with stream:
                return inspect_file(Ecosystem.PYPI, artifact, self.name, stream)

        verdict = await anyio.to_thread.run_sync(write)
        # A question is asked by the proxy, in each session that wants the wheel.
        if verdict is not None and verdict.verdict is Verdict.DENY:
            raise await self._refused(verdict)
        served = self.builder.record.served(action.id)
        needed = tuple(each for each in served if each != source)
        build = SourceBuild(source, filename, built.sha256, built.size, action.id, needed)
        await self.builder.record.note_build(build, self.who)
        await anyio.to_thread.run_sync(built_wheels(self.builder.home).add, source.digest, built)


def _versions_of(requirement: str) -> str:
    """`>=1,<2` of `name[extra]>=1,<2`."""
    name = package_of(requirement).name
    return requirement.removeprefix(name).rpartition("]")[2]


def _failure(result: RunResult, name: str, version: str) -> RunResult:
    why = f"the limit {result.limit.value} ended it" if result.limit else "see its output"
    text = f"{name} {version} could not be built from its source: {why}"
    return replace(result, findings=(*result.findings, Finding(PACKAGES_RULE, "medium", text)))
