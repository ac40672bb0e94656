"""Forwarding of the audit log, for a person: how it stands, and running it in the foreground."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cellwall.audit.export.forwarding import Forwarder, ForwardState, read_state
from cellwall.audit.search import Query, search
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.runtime.forwarding import forwarder
from cellwall.runtime.home import state_home
from cellwall.runtime.recording import audit_directory, forward_folder
from cellwall.runtime.session_data import readable_keys
from cellwall.runtime.vault import AskPassphrase

__all__ = ["ForwardReport", "Forwarder", "forward_report", "open_forwarder"]


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """How forwarding stands."""

    destination: str | None
    state: ForwardState
    waiting: int
    """Records that have not arrived yet."""

    @property
    def problem(self) -> str:
        """Empty if all is well."""
        if self.destination is None:
            return ""
        if self.state.state in ("retrying", "locked", "failed") and self.waiting:
            return self.state.problem
        if self.waiting and not self.state.is_running:
            return "no process forwards the log now"
        return ""


def forward_report(settings: Settings, *, home: str | None = None) -> ForwardReport:
    """How forwarding of this user's log stands, or of the log of a state folder; writes nothing."""
    home = home or state_home(os.environ)
    state = read_state(forward_folder(home))
    newest = next(search(audit_directory(home), Query()), None)
    last = 0 if newest is None else newest.record["seq"]
    return ForwardReport(settings.audit.forward, state, max(0, last - state.seq))


def open_forwarder(
    *, config: str | None, profile: str | None, ask: AskPassphrase | None
) -> Forwarder:
    """The forwarder of this user's log, not started."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    home = state_home(os.environ)
    return forwarder(home, settings, readable_keys(home, lambda: settings, ask))
