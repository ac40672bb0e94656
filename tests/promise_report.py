"""`--report`: what this run says about each promise of docs/requirements.toml.

A clause is proven by its own test, if that test passed here. A test that was skipped, left out or
failed proves nothing, and the report names the clause.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MANIFEST = Path(__file__).parents[1] / "docs" / "requirements.toml"
_PROPERTY = "requirements"
_ORDER = ("passed", "skipped", "failed")
"""A test has the last state of these that any of its parts has."""
_MAX_LEFT_OUT = 60
_NAME = re.compile(r"^(?:tests/)?([^\[@]+)")


@dataclass
class PromiseStates:
    """The state of each test, and the promises it claims."""

    states: dict[str, str] = field(default_factory=dict)
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, nodeid: str, outcome: str, claims: tuple[str, ...] = ()) -> None:
        before = self.states.get(nodeid, outcome)
        self.states[nodeid] = max(before, outcome, key=_ORDER.index)
        if claims:
            self.claims[nodeid] = claims

    def of_promise(self, name: str) -> Counter[str]:
        return Counter(self.states[each] for each, ids in self.claims.items() if name in ids)

    def of_test(self, name: str) -> str:
        """Of all cases of a test, as `unit/test_x.py::test_y`. The strictest counts, but a case that
        was skipped beside one that passed."""
        found = {
            state
            for nodeid, state in self.states.items()
            if _NAME.match(nodeid)[1] == name  # type: ignore[index]  # matches every id
        }
        if "failed" in found:
            return "failed"
        return "passed" if "passed" in found else "skipped" if found else "not run"


class PromiseReport:
    """The pytest plugin. Workers of pytest-xdist attach the ids to their reports."""

    def __init__(self) -> None:
        self._found = PromiseStates()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            ids = [one for mark in item.iter_markers("requirement") for one in mark.args]
            if ids:
                item.user_properties.append((_PROPERTY, sorted(set(ids))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        claims = dict(report.user_properties).get(_PROPERTY, ())
        self._found.add(report.nodeid, report.outcome, tuple(claims))  # type: ignore[arg-type]  # a list of ids

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        manifest = tomllib.loads(MANIFEST.read_text("utf-8"))
        terminalreporter.section("promises")
        terminalreporter.write(render(manifest, self._found))


def render(manifest: Mapping[str, Any], found: PromiseStates) -> str:
    """The table, then every clause that this run does not prove."""
    rows = [
        f"{'promise':8} {'clauses':>8} {'proven':>7} {'passed':>7} {'failed':>7} {'skipped':>8}"
    ]
    unproven: list[str] = []
    left_out: list[str] = []
    total: Counter[str] = Counter()
    without: list[str] = []
    for name, promise in manifest.items():
        counts, proven = found.of_promise(name), 0
        for clause in promise["clauses"]:
            state = found.of_test(clause["test"]) if "test" in clause else "missing"
            proven += state == "passed"
            if state != "passed":
                why = clause.get("missing") or clause["test"]
                told = f"  {name:8} {state}: {clause['says']} ({why})"
                (left_out if state == "not run" else unproven).append(told)
        size = len(promise["clauses"])
        numbers = (counts["passed"], counts["failed"], counts["skipped"])
        rows.append(f"{name:8} {size:8} {proven:7} {numbers[0]:7} {numbers[1]:7} {numbers[2]:8}")
        total.update(promises=1, clauses=size, proven=proven, whole=int(proven == size))
        without += [name] if not counts else []
    rows.append(
        f"{total['whole']} of {total['promises']} promises and {total['proven']} of "
        f"{total['clauses']} clauses are proven by this run."
    )
    if len(left_out) > _MAX_LEFT_OUT:  # a run of certain tests
        rows.append(f"The tests of {len(left_out)} clauses were not part of this run.")
    else:
        unproven += left_out
    if unproven:
        rows += ["not proven by this run:", *unproven]
    if without:
        rows.append(f"without any test in this run: {', '.join(without)}")
    return "\n".join(rows) + "\n"
