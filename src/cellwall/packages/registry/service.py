"""Answers the requests of package managers: a filtered index, and the artifacts that it names.

The steps of a request:
  (1) only GET and HEAD, only the paths of an index or of an artifact;
  (2) read the project's index from the registry, or from the copy that is younger than a minute;
  (3) judge every version (`PackageJudge`); the index shows the allowed ones;
  (4) where no version is allowed and a person can allow one, ask the person, in bounded time;
  (5) an artifact must be in that index, under a version that is allowed;
  (6) download it under the hash of the index, once; inspect it before the first byte is served;
      where the inspection asks, ask the person about this very file, for this session alone;
  (7) report what was refused, with the reason, to the session.
Documents are parsed, judged and inspected in threads: every cell's egress waits for this loop.

A package manager gets 404 for a package or a file that may not be installed, as if it were not
there; the reason is in the body, in the report, and in the result of the action.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.limits import MIB
from cellwall.core.network import HostReply
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules, PackageVerdict
from cellwall.packages.judge import NameRules, PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.downloads import (
    MAX_FETCHES,
    Artifact,
    ArtifactSource,
    CountedUpstream,
    Inspect,
    Upstream,
)
from cellwall.packages.registry.judged_index import JudgedIndex, Refusal
from cellwall.packages.registry.messages import (
    RegistryRequest,
    artifact_reply,
    index_reply,
)
from cellwall.packages.registry.pypi import BadIndex
from cellwall.packages.registry.shared_work import SessionBounds, SharedWork, SizedCache

MAX_INDEX_BYTES = 64 * MIB
INDEX_FRESH_S = 60.0
_MAX_CACHED_INDEX_BYTES = 256 * MIB
# Another attempt gets the same answer: package managers repeat requests only after a 5xx.
_FINAL_CODES = frozenset({"CW-PACKAGE-HASH", "CW-PACKAGE-TOO-LARGE", "CW-PACKAGE-HOST"})


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed, without a verdict on the package."""

    error: CellwallError


@dataclass(frozen=True, slots=True)
class Served:
    """An artifact that a cell got."""

    ecosystem: Ecosystem
    name: str
    artifact: Artifact
    size: int
    verdict: PackageVerdict | None = None


@dataclass(frozen=True, slots=True)
class Buildable:
    """A project whose index was asked for, and of which some version may be built from source."""

    name: str


RegistryEvent = Refusal | Served | Failure | Buildable
Report = Callable[[RegistryEvent], Awaitable[None]]
"""Returns when the event is recorded."""


class Registry(Protocol):
    """One kind of registry: its URLs, and how its index is read and written."""

    ecosystem: Ecosystem
    hosts: frozenset[str]
    """The names under which cells reach the registry."""

    @property
    def revision(self) -> int:
        """Changes when the same documents lead to another index."""

    def index_name(self, request: RegistryRequest) -> str | None:
        """The canonical name whose index the request asks for."""

    def artifact_name(self, request: RegistryRequest) -> str | None:
        """The canonical name of the project whose file the request asks for."""

    async def load(self, name: str, upstream: Upstream, judge: PackageJudge) -> JudgedIndex:
        """Fetch the documents of the registry; parse and judge them in a thread."""


class RegistrySession(Protocol):
    """The rules of one session, and the way to a person."""

    @property
    def judge(self) -> PackageJudge: ...

    async def ask(self, verdict: PackageVerdict) -> bool | None:
        """Whether a person allows the package for this session, or the file that the verdict is
        on; None: no person could be asked.

        Returns within a bounded time. `judge` then knows the answer about a package.
        """


@dataclass(frozen=True, slots=True)
class SilentSession:
    """Implements `RegistrySession`: no person is asked."""

    judge: PackageJudge

    async def ask(self, verdict: PackageVerdict) -> None:
        del verdict


_IndexKey = tuple[Ecosystem, str, NameRules, PackageRules, tuple[int, int] | None, int]
"""The name, and all that decides about it: an answer of one session is not that of another."""
MAX_QUESTIONS = 2
"""About one package: the missing feed, then the package."""


@dataclass(frozen=True, slots=True)
class _Requester:
    """The session that a request comes from."""

    session: RegistrySession
    bounds: SessionBounds
    report: Report


class RegistryService:
    """Serves the cells of one owner. The calls come from one event loop."""

    def __init__(
        self,
        registries: Mapping[str, Registry],
        upstream: Upstream,
        judge: PackageJudge,
        store: ArtifactStore,
        *,
        inspect: Inspect,
    ) -> None:
        """`registries` by host."""
        self._registries = dict(registries)
        self._upstream = upstream
        self._judge = judge
        self._indexes = SizedCache[_IndexKey, JudgedIndex](_MAX_CACHED_INDEX_BYTES, INDEX_FRESH_S)
        self._loading = SharedWork[_IndexKey, JudgedIndex]()
        self._fetches = asyncio.Semaphore(MAX_FETCHES)
        self._artifacts = ArtifactSource(store, upstream, inspect, self._fetches)

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that the service answers for."""
        return frozenset(self._registries)

    async def respond(
        self,
        request: RegistryRequest,
        report: Report,
        session: RegistrySession | None = None,
        *,
        bounds: SessionBounds | None = None,
    ) -> HostReply:
        """The answer to one request; never raises for what the cell or the registry sent.

        `report` gets the verdict of everything that was refused, and each artifact that was served.
        Without a session, the service's own judge decides, and no person is asked.
        """
        registry = self._registries.get(request.host)
        # (1)
        if registry is None or request.method not in {"GET", "HEAD"}:
            return _refuse(405, "this registry can only be read")
        requester = _Requester(
            session or SilentSession(self._judge), bounds or SessionBounds(), report
        )
        try:
            if (name := registry.index_name(request)) is not None:
                return await self._serve_index(registry, name, request, requester)
            if (name := registry.artifact_name(request)) is not None:
                return await self._serve_artifact(registry, name, request, requester)
        except BadInput as error:
            return _refuse(404, error.message)
        except Exception as error:  # noqa: BLE001  # whatever fails, nothing is served
            return await _fail(error, report)
        return _refuse(404, "not a path of a package index")

    async def _serve_index(
        self, registry: Registry, name: str, request: RegistryRequest, requester: _Requester
    ) -> HostReply:
        index = await self._index(registry, name, requester)
        if index.sources:
            await requester.report(Buildable(name))
        refused, answer = index.refusal, None
        for _ in range(MAX_QUESTIONS):  # (4)
            if refused is None or refused.verdict is not Verdict.ASK:
                break
            answer = await requester.session.ask(refused)
            if not answer:
                break
            index = await self._index(registry, name, requester)
            refused = index.refusal
        if refused is not None:
            return await _refuse_package(refused, requester.report, was_asked=answer is not None)
        if (withheld := index.withheld) is not None:
            await requester.report(withheld)  # (7)
        return index_reply(request, *index.page(request.accept, request.scheme))

    async def _index(self, registry: Registry, name: str, requester: _Requester) -> JudgedIndex:
        # (2), (3)
        judge = requester.session.judge
        rules = judge.rules_about(registry.ecosystem, canonical_name(registry.ecosystem, name))
        key = (
            registry.ecosystem,
            name,
            rules,
            judge.rules,
            judge.feed_revision,  # an import of advisories counts at once
            registry.revision,
        )
        # With the rules of the key: an answer that comes meanwhile belongs to another key.
        fixed = judge.under(lambda _ecosystem, _name: rules)

        async def load() -> JudgedIndex:
            async with self._fetches:
                counted = CountedUpstream(self._upstream, requester.bounds)
                index = await registry.load(name, counted, fixed)
            self._indexes.put(key, index, index.size)
            return index

        return self._indexes.get(key) or await self._loading.run(key, requester.bounds, load)

    async def _serve_artifact(
        self, registry: Registry, name: str, request: RegistryRequest, requester: _Requester
    ) -> HostReply:
        report = requester.report
        index = await self._index(registry, name, requester)
        # (5)
        if index.refusal is not None:
            return await _refuse_package(index.refusal, report)
        artifact = index.artifacts.get(request.decoded_path)
        if artifact is None:
            return _refuse(404, f"the index of {name} does not name this file")
        verdict = index.versions[artifact.version]
        if verdict.verdict is not Verdict.ALLOW:
            return await _refuse_package(verdict, report)
        # (6)
        stream = self._artifacts.open(name, artifact)
        if stream is None:
            refused = await self._artifacts.prepare(name, artifact, requester.bounds)
            if refused is not None:
                is_question = refused.verdict is Verdict.ASK
                answer = await requester.session.ask(refused) if is_question else None
                if not answer:
                    return await _refuse_package(refused, report, was_asked=answer is not None)
            stream = self._artifacts.open(name, artifact, is_answered=refused is not None)
        if stream is None:
            return _refuse(502, "the file was removed while it was read")
        try:
            size = os.fstat(stream.fileno()).st_size
            if request.method == "GET" and not artifact.is_metadata:
                # The record is on the disk before the first byte leaves.
                await report(Served(registry.ecosystem, name, artifact, size, verdict))
            return artifact_reply(request, artifact, stream, size)
        except BaseException:
            stream.close()
            raise


async def _fail(error: Exception, report: Report) -> HostReply:
    # (7) Only the texts of our own errors leave.
    if isinstance(error, BadIndex):
        error = CellwallError(str(error), code="CW-PACKAGE-INDEX")
    elif isinstance(error, OSError):
        error = CellwallError("the host cannot store the file", code="CW-PACKAGE-STORE")
    elif not isinstance(error, CellwallError):
        error = CellwallError("the registry proxy failed", detail=type(error).__name__)
    await report(Failure(error))
    return _refuse(403 if error.code in _FINAL_CODES else 502, error.message)


async def _refuse_package(
    verdict: PackageVerdict, report: Report, *, was_asked: bool = False
) -> HostReply:
    # (7)
    refusal = Refusal(verdict, was_asked)
    await report(refusal)
    return _refuse(404, refusal.text)


def _refuse(status: int, text: str) -> HostReply:
    body = f"cellwall: {text}\n".encode()
    return HostReply(status, "text/plain; charset=utf-8", body, size=len(body))
