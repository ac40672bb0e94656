"""The processor time of a front for one request: a real fleet of one host, by Ray with TLS.

Only the process of the front is counted, without Ray's own processes and without the host.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from fleet import fleet_database

from fleet_hosts import RunningFleet, running_fleet
from fleet_links import LoopbackLinks
from fleet_sim.postgres import processor_s

_WARM, _ROUNDS = 50, 500
_IDLE_S = 5.0


def front_cost() -> float:
    """Seconds of the front for one request about a session, beyond what it takes without any."""
    folder = Path(tempfile.mkdtemp(prefix="cw-fleet-", dir="/var/tmp"))
    try:
        with (
            fleet_database(folder, "") as database,
            running_fleet(folder / "fleet", database.new_url(), LoopbackLinks(), hosts=1) as fleet,
        ):
            return _measure(fleet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(fleet: RunningFleet) -> float:
    assert fleet.front.process is not None
    pid = fleet.front.process.pid
    with fleet.client() as client:
        made = client.post("/v1/sessions", json={})
        path = f"/v1/sessions/{made.json()['id']}"
        for _ in range(_WARM):
            assert client.get(path).status_code == 200
        idle_s = processor_s(pid)
        time.sleep(_IDLE_S)
        idle_share = (processor_s(pid) - idle_s) / _IDLE_S
        began_s, before_s = time.monotonic(), processor_s(pid)
        for _ in range(_ROUNDS):
            client.get(path)
        taken_s = processor_s(pid) - before_s
        return (taken_s - idle_share * (time.monotonic() - began_s)) / _ROUNDS
