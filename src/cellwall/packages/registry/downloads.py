"""Artifacts for cells: downloaded once under the hash of the index, inspected, then served.

The file that is served is the file that was inspected: it stays open, or has the same inode.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import IO, Protocol

from anyio import to_thread

from cellwall.core.limits import MIB
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.registry.artifacts import (
    MAX_ARTIFACT_BYTES,
    ArtifactRefused,
    ArtifactStore,
)
from cellwall.packages.registry.shared_work import SessionBounds, SharedWork, Task, run_bounded

MAX_METADATA_BYTES = 8 * MIB
METADATA_SUFFIX = ".metadata"
"""Of the METADATA of a wheel beside the wheel (PEP 658)."""
MAX_FETCHES = 32
_MAX_INSPECTED = 50_000
_TRIM_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class RegistryDocument:
    """What the registry answered: the start of a body is not an answer, so it is whole."""

    status: int
    content_type: str
    body: bytes


class Upstream(Protocol):
    """The way to a registry, outside of every cell."""

    async def get(self, url: str, *, accept: str, max_bytes: int) -> RegistryDocument: ...

    def download(self, url: str) -> AsyncGenerator[bytes]:
        """The body of a file; raises `CellwallError` for an answer other than 200."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of an index: where it is, and the hash under which it was judged."""

    url: str
    filename: str
    version: str
    algorithm: str
    digest: str
    size: int | None = None
    """As the index states it; no more is downloaded."""
    metadata_sha256: str | None = None
    """The hash of the metadata that the index serves apart from a wheel (PEP 658)."""
    source: Artifact | None = None
    """The source archive from which Cellwall built this wheel."""

    @property
    def is_metadata(self) -> bool:
        return self.filename.endswith(METADATA_SUFFIX)

    @property
    def max_bytes(self) -> int:
        most = MAX_METADATA_BYTES if self.is_metadata else MAX_ARTIFACT_BYTES
        return most if self.size is None else min(self.size, most)


Inspect = Callable[[Artifact, str, IO[bytes]], PackageVerdict | None]
"""Judges the bytes of an artifact of the named project, in a thread."""


@dataclass(frozen=True, slots=True)
class _Inspected:
    """A file that was inspected: its inode and size, and the verdict if it was refused."""

    identity: tuple[int, int]
    verdict: PackageVerdict | None

    def allows(self, *, is_answered: bool) -> bool:
        if self.verdict is None:
            return True
        return is_answered and self.verdict.verdict is Verdict.ASK


class CountedUpstream:
    """Implements `Upstream`; counts the bytes for a session."""

    def __init__(self, upstream: Upstream, bounds: SessionBounds) -> None:
        self._upstream = upstream
        self._bounds = bounds

    async def get(self, url: str, *, accept: str, max_bytes: int) -> RegistryDocument:
        self._bounds.count_bytes(0)
        document = await self._upstream.get(url, accept=accept, max_bytes=max_bytes)
        self._bounds.count_bytes(len(document.body))
        return document

    async def download(self, url: str) -> AsyncGenerator[bytes]:
        async with aclosing(self._upstream.download(url)) as chunks:
            async for chunk in chunks:
                self._bounds.count_bytes(len(chunk))
                yield chunk


class ArtifactSource:
    """The artifacts of one service. Used on one event loop."""

    def __init__(
        self,
        store: ArtifactStore,
        upstream: Upstream,
        inspect: Inspect,
        fetches: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._upstream = upstream
        self._inspect = inspect
        self._fetches = fetches
        self._preparing = SharedWork[tuple[str, Artifact], PackageVerdict | None]()
        self._inspected: OrderedDict[tuple[str, Artifact], _Inspected] = OrderedDict()
        self._untrimmed_bytes = _TRIM_BYTES

    def open(
        self, name: str, artifact: Artifact, *, is_answered: bool = False
    ) -> BufferedReader | None:
        """The artifact if this very file was inspected before and allowed.

        `is_answered`: a person has allowed it for the session that asks, so a question is no
        refusal; a denial is. Not by the hash alone: the same bytes may be a wheel in one entry and
        metadata, or another project, in the next.
        """
        inspected = self._inspected.get((name, artifact))
        if inspected is None or not inspected.allows(is_answered=is_answered):
            return None
        return self._open_same(artifact, inspected)

    def _open_same(self, artifact: Artifact, inspected: _Inspected) -> BufferedReader | None:
        stream = self._store.open(artifact.algorithm, artifact.digest)
        if stream is not None and _identity(stream) != inspected.identity:
            stream.close()
            return None
        return stream

    async def prepare(
        self, name: str, artifact: Artifact, bounds: SessionBounds
    ) -> PackageVerdict | None:
        """Download and inspect, once for all that wait; None: the artifact may be served.

        An inspection takes up to half a minute of a thread that all sessions share: that of a
        refused file is not repeated for each request either.
        """
        known = self._inspected.get((name, artifact))
        if known is not None and known.verdict is not None:
            stream = self._open_same(artifact, known)
            if stream is not None:
                stream.close()
                return known.verdict
        return await self._preparing.run(
            (name, artifact), bounds, lambda: self._prepare(name, artifact, bounds)
        )

    async def _prepare(
        self, name: str, artifact: Artifact, bounds: SessionBounds
    ) -> PackageVerdict | None:
        stream = self._store.open(artifact.algorithm, artifact.digest)
        if stream is not None and not await run_bounded(
            Task.INSPECT, self._store.check, artifact.algorithm, artifact.digest, stream
        ):
            stream.close()
            stream = None
        if stream is None:
            async with self._fetches:
                await self._download(artifact, CountedUpstream(self._upstream, bounds))
            stream = self._store.open(artifact.algorithm, artifact.digest)
        if stream is None:
            raise ArtifactRefused("the file was removed while it was read", code="CW-PACKAGE-LOST")
        with stream:
            stream.seek(0)
            verdict = await run_bounded(Task.INSPECT, self._inspect, artifact, name, stream)
            if verdict is not None:
                named = f"{artifact.filename} {artifact.algorithm}:{artifact.digest}"
                is_refused = verdict.verdict is not Verdict.ALLOW
                verdict = replace(verdict, artifact=named) if is_refused else None
            self._inspected[name, artifact] = _Inspected(_identity(stream), verdict)
        if len(self._inspected) > _MAX_INSPECTED:
            self._inspected.popitem(last=False)
        return verdict

    async def _download(self, artifact: Artifact, upstream: Upstream) -> None:
        with self._store.create(
            artifact.algorithm, artifact.digest, max_bytes=artifact.max_bytes
        ) as writer:
            async with aclosing(upstream.download(artifact.url)) as chunks:
                async for chunk in chunks:
                    await to_thread.run_sync(writer.write, chunk)
        self._untrimmed_bytes += writer.size
        if self._untrimmed_bytes >= _TRIM_BYTES:
            self._untrimmed_bytes = 0
            await to_thread.run_sync(self._store.trim)


def _identity(stream: BufferedReader) -> tuple[int, int]:
    found = os.fstat(stream.fileno())
    return found.st_ino, found.st_size
