"""A service forgets who owned old sessions, unless a hold is in force (FS-5)."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cellwall.audit.retention import hold, release
from cellwall.config.models import Settings
from cellwall.interfaces.http.housekeeping import Housekeeping
from cellwall.runtime.home import local_principal
from cellwall.runtime.recording import audit_directory, open_record
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from cellwall.storage.store import open_store
from unit.storage import records

pytestmark = pytest.mark.requirement("FS-5")
DAY_S = 86_400.0


def test_old_sessions_are_forgotten_as_configured_and_not_during_a_hold(tmp_path):
    home, ann = str(tmp_path), records.user("ann")
    settings = StorageSettings(home=home)
    migrate(settings)
    old, recent = records.session(ann.id), records.session(ann.id)
    now_s = time.time()

    def app(days: int | None) -> Any:
        configured = Settings.model_validate({"retention": {"session_days": days}})
        return SimpleNamespace(settings=configured, store=SimpleNamespace(home=home))

    async def go() -> None:
        async with open_store(settings) as store:
            await store.add_user(ann)
            for each, ended_s in ((old, now_s - 3 * DAY_S), (recent, now_s - DAY_S)):
                assert await store.add_session(each, max_live=2)
                assert await store.end_session(each.id, now_s=ended_s)
            unused: Any = None
            tasks = Housekeeping(
                app=app(None), accounts=unused, sessions=store, tls=None, context=None, every_s=1.0
            )

            async def left() -> set[str]:
                found = await store.list_sessions(user_id=ann.id, teams=frozenset())
                return {each.id for each in found}

            await tasks._forget_sessions()
            assert await left() == {old.id, recent.id}  # no time is configured
            who, folder = local_principal("cli"), audit_directory(home)
            with open_record(home, Settings()) as log:
                hold(folder, "case-1", "a lawsuit", log.write, who)
            await replace(tasks, app=app(2))._forget_sessions()
            assert await left() == {old.id, recent.id}
            with open_record(home, Settings()) as log:
                assert release(folder, "case-1", log.write, who)
            await replace(tasks, app=app(2))._forget_sessions()
            assert await left() == {recent.id}

    anyio.run(go)
