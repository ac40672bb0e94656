"""CPU and memory of the live sandboxes of the service, sampled while a page is open."""

from __future__ import annotations

from cellwall.admin.usage_history import UsageHistories, UsageHistory
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.runtime.app import App


class SandboxUsages:
    """Samples of the sandboxes of all users."""

    def __init__(self, app: App, sandboxes: OwnedSandboxes) -> None:
        self._app, self._sandboxes = app, sandboxes
        self._histories = UsageHistories()

    def sample(self) -> None:
        """Read the counters of each sandbox, unless that was done a moment ago."""
        if not self._histories.is_due:
            return
        found = {
            each.id: self._app.runtime.sandbox.live_usage(each.id) for each in self._sandboxes.all()
        }
        self._histories.add({name: (each.cpu_s, each.memory_bytes) for name, each in found.items()})

    def of(self, sandbox_id: str) -> UsageHistory:
        """The samples of one sandbox; empty before the first."""
        return self._histories.of(sandbox_id)
