"""What happens now: complete counts, sampled rows, each account apart (SRV-5)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cellwall.admin.live_view import LiveView
from cellwall.config.load import load_settings
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.runtime.recording import open_record
from cellwall.secrets.session_keys import SessionKeys

DEADLINE_S = 60.0


def denial(who: str, number: int = 0, interface: str = "http") -> Event:
    body: dict[str, Json] = {"verdict": "deny", "command": [f"run {number}"], "reason": "no"}
    return Event(EventKind.DENIAL, "", who, interface, body)


def outcome(who: str, wall_s: float, limit: str | None = None) -> Event:
    body: dict[str, Json] = {"status": "ok", "usage": {"wall_s": wall_s}, "limit": limit}
    return Event(EventKind.OUTCOME, "", who, "http", body)


@pytest.mark.requirement("SRV-5")
def test_every_record_is_counted_and_each_account_sees_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = load_settings(file=None, profile=None, environ={})
    keys = SessionKeys(str(tmp_path))
    with open_record(str(tmp_path), settings, keys) as log:
        log.write(outcome("ann", 0.02))  # before anybody looked
        view = LiveView(str(tmp_path), keys)
        with view.watched():
            for number in range(250):
                log.write(denial("bob", number))
            log.write(outcome("ann", 3.0, "memory"))
            log.write(denial("ann", interface="cli"))  # a user of the machine of the same name
            deadline = time.monotonic() + DEADLINE_S
            while sum(view.snapshot(None).refusals) < 251:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            everything, own = view.snapshot(None), view.snapshot("ann")
            assert (sum(everything.runs), sum(everything.refusals)) == (2, 251)
            assert len(everything.rows) == 100
            assert everything.seen == 252
            assert everything.rows[1].text == "ended by the memory limit"
            assert (sum(own.runs), sum(own.refusals), own.limits) == (2, 0, (("memory", 1),))
            assert [row.verdict for row in own.rows] == ["limit"]
            assert (own.latency_s(0.5), own.latency_s(0.95)) == (0.025, 5.0)
            # A new account of a removed one's name sees nothing of it.
            late = view.snapshot("ann", since_s=time.time() + 1)
            assert (sum(late.runs), late.rows) == (0, ())
            assert view.snapshot("eve").rows == ()
        view.close()
