"""Reports that are few bytes and much work for whoever reads them (ISO-13, LIM-2)."""

from __future__ import annotations

import threading

import pytest

import cellwall
from cellwall.runtime import cell_io
from cellwall.runtime.guarding import LazyGuard

pytestmark = pytest.mark.requirement("ISO-13", "LIM-2")

_FORGED = """
import json, os
told = json.dumps({{"done": 1, "exit": 0, "results": [], {forged}}}).encode()
data = memoryview(len(told).to_bytes(4, "big") + bytes(4) + told)
while data: data = data[os.write(3, data):]
os._exit(0)
"""


@pytest.mark.parametrize(
    "forged",
    [
        '"value": ["w%x" % number for number in range(40_000)]',
        '"value": {"w%x" % number: 0 for number in range(40_000)}',
        '"value": [["x"]] * 40_000',
        '"error": {"type": "E", "message": "", "traceback": ["y"] * 40_000}',
    ],
)
def test_forty_thousand_texts_are_more_than_a_report_has(
    forged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is parsed, so nobody cleans it: no text of the report reaches the guard."""
    seen: list[object] = []
    real = LazyGuard.clean

    def clean(self: LazyGuard, action: object, result: object) -> object:
        seen.append(result)
        return real(self, action, result)  # type: ignore[arg-type]  # handed through

    monkeypatch.setattr(LazyGuard, "clean", clean)
    few = forged.replace("40_000", "400")
    assert cellwall.run_code(_FORGED.format(forged=few)).status.value == "ok", "the control"
    seen.clear()
    ran = cellwall.run_code(_FORGED.format(forged=forged), timeout=60)
    assert (ran.status.value, ran.exit_code, ran.value, ran.error) == ("ok", 0, None, None)
    assert [(told.value, told.code_error) for told in seen] == [(None, None)]  # type: ignore[attr-defined]  # a RunResult
    assert [finding.category for finding in ran.outcome.findings] == ["cut"], "it is said"


def test_results_of_honest_code_are_cut_and_not_refused() -> None:
    ran = cellwall.run_code("[str(number) for number in range(40_000)]")
    assert (ran.status.value, ran.value) == ("ok", None)
    assert ran.text is not None
    assert ran.text.startswith("['0', '1'")
    assert [finding.category for finding in ran.outcome.findings] == ["cut"], "it is said"
    few = cellwall.run_code("[str(number) for number in range(3_000)]")
    assert few.value is not None
    assert few.outcome.findings == (), "nothing was cut"
    with cellwall.Sandbox.create() as sandbox:
        assert sandbox.run_code("['x'] * 40_000").outcome.findings
        assert sandbox.run_code("['x']").outcome.findings == (), "that was the run before"
        for _ in range(3):  # each run has its own part
            assert sandbox.run_code("[str(number) for number in range(9_000)]").value is not None


def test_what_cannot_be_read_in_the_run_s_time_is_not_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    def clean(self: LazyGuard, action: object, result: object) -> object:  # for ever
        go_on.wait()
        return result

    monkeypatch.setattr(LazyGuard, "clean", clean)
    monkeypatch.setattr(cell_io, "_MIN_CLEANING_S", 0.1)
    try:
        ran = cellwall.run_code("print('x' * 100_000)\n[1]", timeout=5)
    finally:
        go_on.set()
    assert (ran.status.value, ran.limit, ran.stdout, ran.value) == ("limit", "output", "", None)
    assert [finding.category for finding in ran.outcome.findings] == ["late"]
