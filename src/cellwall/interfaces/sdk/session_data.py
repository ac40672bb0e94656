"""`cellwall.erase`: delete all data of a session or a run, now (FS-5)."""

from __future__ import annotations

from cellwall.admin import session_data
from cellwall.admin.session_data import ErasedSession
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import shared_app

__all__ = ["ErasedSession", "erase"]


def erase(
    session_id: str, *, config: str | None = None, profile: str | None = None
) -> ErasedSession:
    """Destroy the keys of a sandbox (`sbx_...`) or of a run (`act_...`), then remove its files.

    Its records stay in the audit log, which still verifies; nothing can read their bodies again.
    """
    app = shared_app(config, profile)
    return session_data.erase(app, session_id, principal=local_principal("sdk"))
