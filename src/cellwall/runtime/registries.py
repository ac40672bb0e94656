"""Package registries as configured: the services that answer for their hosts in a cell (PKG-1)."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO
from urllib.parse import urlsplit

from cellwall.config.models import Settings
from cellwall.core.errors import Denied
from cellwall.core.network import (
    AnswerRequest,
    EgressContext,
    HostReply,
    HostRequest,
    ReportRefusal,
)
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.inspection.artifact import inspect_artifact
from cellwall.packages.inspection.edition import inspection_edition
from cellwall.packages.inspection.findings import NOT_INSPECTED
from cellwall.packages.inventory import InstalledPackage
from cellwall.packages.judge import PackageJudge
from cellwall.packages.kept_trees import RegistryAnswer
from cellwall.packages.locks.model import LockedFile
from cellwall.packages.names import Ecosystem
from cellwall.packages.popular import popular_rank, popular_spelling
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.built_wheels import BuiltWheels
from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.npm_registry import NpmRegistry
from cellwall.packages.registry.passed_inspections import PassedInspections
from cellwall.packages.registry.pypi_registry import PypiRegistry
from cellwall.packages.registry.service import (
    Buildable,
    Failure,
    Registry,
    RegistryEvent,
    RegistryService,
    Served,
    SilentSession,
)
from cellwall.packages.registry.shared_work import SessionBounds
from cellwall.packages.registry.upstream import HttpUpstream
from cellwall.runtime.package_judging import open_judge, packages_folder
from cellwall.runtime.package_record import PackageRecord
from cellwall.runtime.package_sessions import PackageSessions
from cellwall.sandbox.templates.uv_answers import CACHE_INSIDE, UvAnswers

NOT_BUILT_CODE = "CW-PACKAGE-NOT-BUILT"
"""Refused now, but Cellwall may build the package from its source."""
_MAX_SESSIONS = 4096
_ADDRESS = re.compile(r"[\d.]*|.*:.*")


def registry_services(
    settings: Settings, home: str, sessions: PackageSessions, record: PackageRecord
) -> Mapping[str, RegistryHost]:
    """The service of each registry, by the name that actions use."""
    judge = open_judge(settings, home)
    store, sites = artifact_store(home), registry_sites(settings, home)
    passed = PassedInspections(os.path.join(packages_folder(home), "inspected"), inspection_edition)
    most, answers = settings.egress.max_download_bytes, UvAnswers(home)
    return {
        name: RegistryHost(site, judge, store, passed, sessions, record, answers, most)
        for name, site in sites.items()
    }


def artifact_store(home: str) -> ArtifactStore:
    """The artifacts of this state folder."""
    return ArtifactStore(os.path.join(packages_folder(home), "artifacts"))


def built_wheels(home: str) -> BuiltWheels:
    """The wheels that were built from sources (PKG-3)."""
    return BuiltWheels(os.path.join(packages_folder(home), "built"), artifact_store(home))


def registry_sites(settings: Settings, home: str) -> dict[str, RegistrySite]:
    """The registries, by the names that actions use."""
    packages = settings.packages
    pypi = RegistrySite(
        PypiRegistry(packages.pypi_url, builds=built_wheels(home)),
        (packages.pypi_url, *packages.pypi_file_urls),
    )
    npm = RegistrySite(NpmRegistry(packages.npm_url), (packages.npm_url,))
    return {"pypi": pypi, "npm": npm}


@dataclass(frozen=True, slots=True)
class RegistrySite:
    """A registry, and the URLs below which its index and its files are."""

    registry: Registry
    urls: tuple[str, ...]

    @property
    def origins(self) -> frozenset[str]:
        return frozenset("://".join(urlsplit(url)[:2]) for url in self.urls)

    @property
    def hosts(self) -> frozenset[str]:
        """The names under which a cell reaches this registry only: those of a mirror, too, which a
        wildcard of the allowlist may cover."""
        own = {urlsplit(url).hostname or "" for url in self.urls}
        return self.registry.hosts | {host for host in own if not _ADDRESS.fullmatch(host)}


class RegistryHost:
    """Implements `HostService`. One upstream connection pool for each event loop."""

    def __init__(
        self,
        site: RegistrySite,
        judge: PackageJudge,
        store: ArtifactStore,
        passed: PassedInspections,
        sessions: PackageSessions,
        record: PackageRecord,
        answers: UvAnswers,
        max_bytes: int,
    ) -> None:
        self._site = site
        self._judge = judge
        self._store = store
        self._passed = passed
        self._sessions = sessions
        self._record = record
        self._answers = answers
        self._max_bytes = max_bytes
        self._bounds: OrderedDict[str, SessionBounds] = OrderedDict()
        self._running: tuple[asyncio.AbstractEventLoop, RegistryService, HttpUpstream] | None = None

    @property
    def hosts(self) -> frozenset[str]:
        return self._site.hosts

    @property
    def offered(self) -> Mapping[str, bytes]:
        """The answers of uv about the Pythons of a cell, in the cache of uv."""
        if self._site.registry.ecosystem is not Ecosystem.PYPI:
            return {}
        entries = self._answers.entries()
        return {f"{CACHE_INSIDE}/{path}": content for path, content in entries.items()}

    def accept(self, context: EgressContext, report: ReportRefusal) -> AnswerRequest | None:
        service, bounds = self._service(), self._session_bounds(context)
        session = self._sessions.session_of(context, self._site.registry.ecosystem, self._judge)
        if session is None:  # without its rules nothing is served
            return None
        pass_on = partial(self._pass_on, context, report)

        async def respond(request: HostRequest) -> HostReply:
            asked = RegistryRequest.of(request)
            reply = await service.respond(asked, pass_on, session, bounds=bounds)
            if self._record.keeps(context.action_id):
                self._record.note_answer(RegistryAnswer.of(asked, reply), context)
            return reply

        return respond

    async def _pass_on(
        self, context: EgressContext, report: ReportRefusal, event: RegistryEvent
    ) -> None:
        if isinstance(event, Failure):
            report(event.error)
            return
        if isinstance(event, Buildable):
            self._record.note_buildable(event.name, context)
            return
        if event.verdict is not None and event.verdict.is_ruled:
            await self._record.note_verdict(event.verdict, context)
        if isinstance(event, Served):
            found = event.ecosystem, event.name, event.artifact, event.size
            await self._record.note_install(installed_package(*found, context.action_id), context)
            return
        await self._record.note_refusal(event.verdict, context)
        code = NOT_BUILT_CODE if event.is_unbuilt else "CW-PACKAGE-REFUSED"
        report(Denied(event.text, code=code))

    async def repeats(
        self, answers: Sequence[RegistryAnswer], context: EgressContext, report: ReportRefusal
    ) -> bool:
        """Whether each of these requests gets the same answer now, under the rules, the feed and
        the index of now, and none of its packages is refused. Only then the artifacts among the
        answers are recorded as those of the action, as if a cell had got them.

        No person is asked: where one would be, the answer is another one.
        """
        session = self._sessions.session_of(context, self._site.registry.ecosystem, self._judge)
        if session is None:
            return False
        service, bounds = self._service(), self._session_bounds(context)
        silent, events = SilentSession(session.judge), list[RegistryEvent]()

        async def collect(event: RegistryEvent) -> None:
            events.append(event)

        async def is_same(answer: RegistryAnswer) -> bool:
            request = answer.request
            reply = await service.respond(request, collect, silent, bounds=bounds)
            reply.close()
            return RegistryAnswer.of(request, reply) == answer

        if not all(await asyncio.gather(*map(is_same, answers))):
            return False

        def is_denied() -> bool:
            # An index is up to a minute old, and the feed may be newer.
            served = [event for event in events if isinstance(event, Served)]
            return any(
                silent.judge.judge_installed(
                    event.ecosystem, event.name, event.artifact.version
                ).verdict
                is Verdict.DENY
                for event in served
            )

        if await asyncio.to_thread(is_denied):
            return False
        # Concurrently: the records share flushes.
        await asyncio.gather(*(self._pass_on(context, report, event) for event in events))
        return True

    def _session_bounds(self, context: EgressContext) -> SessionBounds:
        """One for the whole life of a live sandbox."""
        key = context.session_id or context.action_id
        if key not in self._bounds and len(self._bounds) >= _MAX_SESSIONS:
            self._bounds.popitem(last=False)
        return self._bounds.setdefault(key, SessionBounds(self._max_bytes))

    def _service(self) -> RegistryService:
        loop = asyncio.get_running_loop()
        if self._running is None or self._running[0] is not loop:
            upstream = HttpUpstream(self._site.origins)
            service = RegistryService(
                dict.fromkeys(self.hosts, self._site.registry),
                upstream,
                self._judge,
                self._store,
                inspect=self._inspect,
            )
            self._running = loop, service, upstream
        return self._running[1]

    async def close(self) -> None:
        """Close the connections to the registry; on the loop on which requests were answered."""
        if self._running is not None:
            await self._running[2].aclose()
            self._running = None

    def _inspect(self, artifact: Artifact, name: str, stream: IO[bytes]) -> PackageVerdict | None:
        ecosystem = self._site.registry.ecosystem
        subject = (
            *(ecosystem.value, name, artifact.version, artifact.filename),
            *(artifact.algorithm, artifact.digest, artifact.metadata_sha256),
        )
        if self._passed.has(*subject):
            return None
        verdict = inspect_file(ecosystem, artifact, name, stream)
        # What was not read to its end may be read by the next process, which has more time.
        is_whole = verdict is not None and all(e.code != NOT_INSPECTED for e in verdict.reasons)
        if verdict is not None and is_whole and verdict.verdict is Verdict.ALLOW:
            self._passed.add(*subject)
        return verdict


def inspect_file(
    ecosystem: Ecosystem, artifact: Artifact, name: str, stream: IO[bytes]
) -> PackageVerdict | None:
    """The verdict on the bytes of an artifact of this project."""
    if artifact.is_metadata:
        return None  # text that a resolver parses; its hash is in the index
    is_other = popular_spelling(ecosystem, name) is not None
    return inspect_artifact(
        ecosystem,
        name,
        artifact.version,
        artifact.filename,
        stream,
        rank=None if is_other else popular_rank(ecosystem, name.lower()),
        metadata_sha256=artifact.metadata_sha256,
    )


def installed_package(
    ecosystem: Ecosystem, name: str, artifact: Artifact, size: int, action_id: str
) -> InstalledPackage:
    """An artifact that the cell of an action gets."""
    source = artifact.source
    return InstalledPackage(
        ecosystem,
        name,
        artifact.version,
        artifact.filename,
        artifact.url,
        artifact.algorithm,
        artifact.digest,
        size,
        action_id,
        source=None
        if source is None
        else LockedFile(
            source.filename, source.url, ((source.algorithm, source.digest),), source.size or 0
        ),
    )
