"""Trees of earlier installations, for the same request in an empty environment (PKG-1, PKG-5).

(1) The cell of an installation leaves an archive of the new tree in the workspace, where the
    processes of the sandbox can write. Its MAC has a key that only this cell got.
(2) The archive is kept with the answers of the registry that it was made of.
(3) The next installation of the request asks the registry proxy for the same answers. The proxy
    judges each package anew; one other answer, and the package manager runs as ever.
"""

# ruff: noqa: PLC0415  # late imports: few actions install packages

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from cellwall.core.errors import CellwallError
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.sandbox_ports import WorkspacePort
from cellwall.core.types import Action
from cellwall.runtime.package_judging import packages_folder
from cellwall.sandbox.languages import python_version
from cellwall.sandbox.templates.uv_answers import UvAnswers

if TYPE_CHECKING:
    from cellwall.packages.kept_trees import KeptTree, KeptTrees, RegistryAnswer

NO_KEY = b""
"""For an installation into an environment that exists: its tree is not that of the request."""
_MAC_BYTES = hashlib.sha256().digest_size
_WORKSPACE = "/workspace/"
_ASK_WITHIN_S = 30.0
"""A registry that answers later is asked by uv, in the time of its cell."""

Repeats = Callable[[Action, "Sequence[RegistryAnswer]"], Awaitable[tuple[Finding, ...] | None]]
"""What the registry reports where each answer is the same now; else None."""


def kept_trees(home: str) -> KeptTrees:
    """The trees of this state folder."""
    from cellwall.packages.kept_trees import KeptTrees

    return KeptTrees(os.path.join(packages_folder(home), "trees"))


@dataclass(frozen=True, slots=True)
class FoundTree:
    """An archive that may be unpacked for the action, and what the registry reports about it."""

    archive: bytes
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class PackageTrees:
    """The kept trees, as an installation uses them."""

    open_kept: Callable[[], KeptTrees]
    repeats: Repeats
    workspaces: WorkspacePort
    uv: UvAnswers

    def new_key(self, action: Action, operation: InstallPackages, base: str) -> bytes:
        """A key for the archive of a new environment; `NO_KEY` where the user base `base` has
        packages, and for npm."""
        if operation.ecosystem != "pypi":
            return NO_KEY
        place = f"{base.removeprefix(_WORKSPACE)}/lib/python{python_version()}/site-packages"
        try:
            exists = self.workspaces.operate(
                replace(action, operation=FileOperation("exists", place))
            )
        except CellwallError:  # a link, for example
            return NO_KEY
        return NO_KEY if exists else secrets.token_bytes(_MAC_BYTES)

    # (3)
    async def find(
        self, action: Action, operation: InstallPackages, program: str
    ) -> FoundTree | None:
        """The tree of this request, where the registry would answer as it did; the packages are
        then recorded as those of the action. `program` is the source that installs."""
        tree = await anyio.to_thread.run_sync(self._find, operation, program)
        if tree is None:
            return None
        findings = None
        with anyio.move_on_after(_ASK_WITHIN_S):
            # As the cell would ask, which has no session.
            findings = await self.repeats(replace(action, session_id=None), tree.answers)
        return None if findings is None else FoundTree(tree.archive, findings)

    def _find(self, operation: InstallPackages, program: str) -> KeptTree | None:
        with suppress(OSError, CellwallError):
            return self.open_kept().find(self._subject(operation, program))
        return None

    # (1), (2)
    def keep(
        self,
        action: Action,
        operation: InstallPackages,
        program: str,
        *,
        key: bytes,
        answers: Sequence[RegistryAnswer],
    ) -> None:
        """Keep the archive that the cell left; one with another MAC, or none, is left alone."""
        from cellwall.packages.kept_trees import KeptTree

        path = f".cellwall-install/{action.id}.tree"
        with suppress(OSError, CellwallError):
            exists = replace(action, operation=FileOperation("exists", path))
            if not answers or not self.workspaces.operate(exists):
                return
            read = replace(action, operation=FileOperation("read", path))
            content = self.workspaces.operate(read)
            assert isinstance(content, bytes)  # noqa: S101  # by the port
            archive, mac = content[:-_MAC_BYTES], content[-_MAC_BYTES:]
            if hmac.compare_digest(mac, hmac.digest(key, archive, "sha256")):
                subject = self._subject(operation, program)
                self.open_kept().keep(subject, KeptTree(tuple(answers), archive))

    def _subject(self, operation: InstallPackages, program: str) -> tuple[str, ...]:
        """All that the tree depends on, apart from the answers of the registry."""
        return self.uv.name, hashlib.sha256(program.encode()).hexdigest(), *operation.requirements
