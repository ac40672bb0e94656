"""A sandbox by the unmodified E2B SDK over loopback: create, run code, kill; and over `/v1`."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from e2b_code_interpreter import Sandbox
from http_service import Client, Served, served


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    del quiet  # short: nothing to say before the end
    os.environ["CELLWALL_SUPERVISOR"] = "off"
    os.environ["CELLWALL_PATH"] = "warm"
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as folder:
        config = Path(folder, "cellwall.toml")
        config.write_text("[limits]\nmemory_bytes = 67108864\n")
        with served(folder, str(config)) as service:
            client = service.client()
            spans: dict[str, list[float]] = {}
            for index in range(rounds + 3):
                found = _by_sdk(service) | _by_v1(client)
                if index >= 3:  # templates and connections are warm
                    for name, seconds in found.items():
                        spans.setdefault(name, []).append(seconds * 1000)
    figures = {}
    for name, times in spans.items():
        times.sort()
        figures[f"{name}_p50_ms"] = round(statistics.median(times), 2)
        figures[f"{name}_p95_ms"] = round(times[int(0.95 * (len(times) - 1))], 2)
    figures["e2b_over_v1"] = round(figures["e2b_total_p50_ms"] / figures["v1_total_p50_ms"], 2)
    return figures


def _by_sdk(service: Served) -> dict[str, float]:
    url = f"{service.address}/e2b"
    begun = time.perf_counter()
    sandbox = Sandbox.create(api_key=service.token, api_url=url, sandbox_url=url)
    made = time.perf_counter()
    assert sandbox.run_code("1+1").text == "2"
    ran = time.perf_counter()
    assert sandbox.kill()
    ended = time.perf_counter()
    return {
        "e2b_create": made - begun,
        "e2b_run_code": ran - made,
        "e2b_kill": ended - ran,
        "e2b_total": ended - begun,
    }


def _by_v1(client: Client) -> dict[str, float]:
    begun = time.perf_counter()
    session = client.new_session()
    client.run(session)
    client.ask("DELETE", f"/v1/sessions/{session}")
    return {"v1_total": time.perf_counter() - begun}
