"""The changes of copy-on-write runs and sandboxes: list, apply, discard.

The same as `cellwall changes`, `diff`, `apply` and `discard`. These calls read and write files and
block; async programs call them in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.admin import apply_changes
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal

if TYPE_CHECKING:
    from cellwall.admin.apply_changes import ApplyReport, Change

_MAX_DIFF_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that wait under one id: a run's `outcome.workspace_id`, or a sandbox's `id`."""

    id: str
    config: str | None = field(default=None, kw_only=True)
    profile: str | None = field(default=None, kw_only=True)

    @property
    def directory(self) -> str:
        """The directory on the host that the changes belong to."""
        return apply_changes.target_directory(self._app(), self.id)

    def list(self) -> Sequence[Change]:
        """Every added, modified and deleted path; code and instructions of agents come first."""
        return apply_changes.describe_changes(self._app(), self.id)

    def diff(self, *, max_bytes: int = _MAX_DIFF_BYTES) -> str:
        """The changes in the format of `git diff`."""
        return apply_changes.unified_diff(self._app(), self.id, max_bytes=max_bytes)

    def apply(
        self, *, force: bool = False, instructions: bool = False, dry_run: bool = False
    ) -> ApplyReport:
        """Write the changes to the directory; the report lists what was refused, and why.

        `force` overwrites files that changed since the run began; `instructions` includes files
        that agents obey (CLAUDE.md, AGENTS.md, …). A sandbox that still lives is refused.
        """
        app = self._app()
        if dry_run:
            return apply_changes.preview(app, self.id, force=force, instructions=instructions)
        return apply_changes.apply_to_host(
            app,
            self.id,
            force=force,
            instructions=instructions,
            principal=local_principal("sdk"),
        )

    def discard(self) -> None:
        """Remove the changes; the directory stays as it is. A live sandbox is refused."""
        apply_changes.discard(self._app(), self.id, principal=local_principal("sdk"))

    def _app(self) -> App:
        return wiring.shared_app(self.config, self.profile)


def waiting_changes(
    *, config: str | None = None, profile: str | None = None
) -> tuple[Changes, ...]:
    """All changes that were neither applied nor discarded, oldest first."""
    waiting = apply_changes.pending(wiring.shared_app(config, profile))
    return tuple(Changes(each.id, config=config, profile=profile) for each in waiting)
