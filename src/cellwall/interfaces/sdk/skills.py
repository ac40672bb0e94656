"""Proposes files of a workspace as a skill."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from cellwall.admin.skills import MAX_BYTES, MAX_FILES
from cellwall.admin.skills import SkillAdmin as Store
from cellwall.core.errors import CellwallError, SkillRefused
from cellwall.core.limits import MIB
from cellwall.interfaces.sdk.files import AsyncFiles
from cellwall.runtime.home import local_principal

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.hosts import Host

_HEADERS_BYTES = 4096  # headers and padding of one file in an archive


@dataclass(frozen=True, slots=True)
class ProposedSkill:
    """A proposal for a person to review: `cellwall skills review ID`."""

    id: str
    name: str


class AsyncSkills:
    """Proposals of skills from the workspace; they go to quarantine only."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def propose(self, path: str, *, name: str) -> ProposedSkill:
        """Put a directory of the workspace into quarantine for review by a person.

        No sandbox sees it until a person has signed it with `cellwall skills approve`.
        """
        archive = _BoundedArchive()
        await AsyncFiles(self._host).download(path, to=archive)
        files, executables = _unpack(archive.getvalue())

        def propose() -> ProposedSkill:
            who = local_principal("sdk")
            source = f"sandbox {self._host.id}"
            made = Store().propose(name, files, executables, source=source, principal=who)
            return ProposedSkill(made.id, made.name)

        return await anyio.to_thread.run_sync(propose)


class _BoundedArchive(io.BytesIO):
    """An archive in memory, bounded by the size limit of a skill."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # only bytes come
        if self.tell() + len(data) > MAX_BYTES + _HEADERS_BYTES * MAX_FILES:
            raise SkillRefused(
                f"the skill is larger than {MAX_BYTES // MIB} MiB",
                hint="Remove files that the skill does not need.",
                code="CW-SKILL-TOO-LARGE",
            )
        return super().write(data)


def _unpack(archive: bytes) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files of an archive that we packed; code in the sandbox chose their names."""
    files: dict[str, bytes] = {}
    executables: set[str] = set()
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    files[member.name] = content.read()
                    if member.mode & 0o100:
                        executables.add(member.name)
    except (tarfile.TarError, OSError) as error:
        raise CellwallError(
            "the files of the workspace could not be read", code="CW-SKILL-FILE", detail=str(error)
        ) from error
    return files, frozenset(executables)
