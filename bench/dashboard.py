"""The dashboard in Debian's Chromium: first paint, bytes of a page, the cost of an open page, and a
flood of 1,000 records a second; and the search over a record of many lines.

The service runs in its own process. `--rounds` is the number of page loads.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from typing import Any
from urllib.parse import urlencode

from http_service import Served, command, served
from playwright.sync_api import Page, sync_playwright

from cellwall.config.load import load_settings
from cellwall.core.outcomes import Event, EventKind
from cellwall.runtime.recording import open_record

_PASSWORD = "correct horse battery"  # of a service that lives for this run
_WATCH_S = 10.0
_RATE = 1000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGES = (
    "/",
    "/ui/approvals",
    "/ui/sessions",
    "/ui/policy",
    "/ui/audit",
    "/ui/health",
    "/ui/egress",
)


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    """Figures by name; times in milliseconds, shares in percent of a core."""
    _ = quiet
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: apt-get install chromium"
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as folder:
        config = os.path.join(folder, "cellwall.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("[accounts]\nargon2_memory_kib = 64\nargon2_passes = 1\n")
        with served(folder, config) as service, sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            context = chromium.new_context(base_url=service.address)
            page = context.new_page()
            _sign_in(service, page, os.path.join(folder, "service"))
            figures |= _paints(page, min(rounds, 20))
            figures |= _cost(service, page)
            figures |= _flood(service, page, os.path.join(folder, "service"), config)
            chromium.close()
    return figures


def _sign_in(service: Served, page: Page, home: str) -> None:
    environ = {**os.environ, "CELLWALL_HOME": home}
    text = command(environ, service.config, "user", "link", "bench")
    found = re.search(r"cwl_[\w-]+", text)
    assert found is not None, text
    page.goto(f"/#sign-in={found[0]}")
    page.locator("#by-link [name=password]").fill(_PASSWORD)
    page.locator("#by-link button").click()
    page.wait_for_selector("#feed")
    # The new password has ended the token.
    made = command(environ, service.config, "token", "create", "--user", "bench", "--ttl", "1h")
    service.token = made.strip()


def _paints(page: Page, rounds: int) -> dict[str, float]:
    """The first load of each page without a cache, then repeated ones with it."""
    figures: dict[str, float] = {}
    times: list[float] = []
    largest = 0
    for path in _PAGES:
        for _ in range(max(1, rounds // len(_PAGES))):
            page.goto(path)
            found = page.evaluate(
                "() => new Promise((done) => new PerformanceObserver((list) => {"
                " for (const each of list.getEntries())"
                " if (each.name === 'first-contentful-paint') done(each.startTime) })"
                ".observe({type: 'paint', buffered: true}))"
            )
            times.append(float(found))
        # All files of the page, those in the cache as well: as at the first visit.
        sizes = page.evaluate(
            "() => [...performance.getEntriesByType('navigation'),"
            " ...performance.getEntriesByType('resource')].map((each) => each.decodedBodySize)"
        )
        largest = max(largest, sum(sizes))
    figures["first_paint_ms_p50"] = statistics.median(times)
    figures["first_paint_ms_max"] = max(times)
    figures["page_bytes_max"] = float(largest)
    return figures


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _used(service: Served) -> float:
    """Percent of a core while nothing but the page is open."""
    before, started = _cpu_s(service.pid), time.monotonic()
    time.sleep(_WATCH_S)
    return 100 * (_cpu_s(service.pid) - before) / (time.monotonic() - started)


def _cost(service: Served, page: Page) -> dict[str, float]:
    page.goto("about:blank")
    time.sleep(1)
    without = _used(service)
    page.goto("/")
    page.wait_for_selector("#rates canvas")
    return {
        "idle_percent_of_a_core": without,
        "open_page_percent_of_a_core": max(0.0, _used(service) - without),
    }


def _flood(service: Served, page: Page, home: str, config: str) -> dict[str, float]:
    """Records of another process, at a fixed rate; gaps between the messages that a page gets."""
    page.evaluate(
        "() => { window.gaps = []; let last = performance.now();"
        " document.addEventListener('cellwall:message', () => {"
        " const now = performance.now(); gaps.push(now - last); last = now }) }"
    )
    settings = load_settings(file=config, profile=None, environ=os.environ)
    stop, written = threading.Event(), [0]
    before = _cpu_s(service.pid)

    def write(log: Any, share: int) -> None:  # the audit log
        due = time.monotonic()
        while not stop.is_set():
            body: dict[str, Any] = {"verdict": "deny", "command": ["flood"], "reason": "a bench"}
            log.write(Event(EventKind.DENIAL, "", "bench", "http", body))
            written[0] += 1
            due += share / _RATE
            time.sleep(max(0.0, due - time.monotonic()))

    with open_record(home, settings) as log:
        writers = [threading.Thread(target=write, args=(log, 16)) for _ in range(16)]
        started = time.monotonic()
        for each in writers:
            each.start()
        time.sleep(_WATCH_S)
        stop.set()
        for each in writers:
            each.join()
        took = time.monotonic() - started
    gaps = page.evaluate("gaps")
    return {
        "flood_records_per_s": written[0] / took,
        "flood_longest_gap_ms": max(gaps),
        "flood_percent_of_a_core": 100 * (_cpu_s(service.pid) - before) / took,
        "search_records": float(written[0]),
        **_search(service),
    }


def _search(service: Served) -> dict[str, float]:
    """A search for a rare text and for a verdict, as the page does it."""
    host = service.address.removeprefix("http://")
    figures = {}
    for name, query in (("text", {"text": "no such text"}), ("verdict", {"verdict": "ask"})):
        times = []
        for _ in range(5):
            line = http.client.HTTPConnection(host, timeout=60)
            started = time.perf_counter()
            headers = {"Authorization": f"Bearer {service.token}"}
            line.request("GET", f"/v1/audit?{urlencode(query)}", headers=headers)
            answer = line.getresponse()
            assert "records" in json.loads(answer.read()), answer.status
            times.append((time.perf_counter() - started) * 1000)
            line.close()
        figures[f"search_{name}_ms_p50"] = statistics.median(times)
    return figures
