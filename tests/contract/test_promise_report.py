"""The report of `./dev test --report` counts what ran, and calls nothing proven that did not pass."""

from __future__ import annotations

from promise_report import PromiseStates, render

MANIFEST = {
    "A-1": {"clauses": [{"says": "One.", "test": "unit/test_a.py::test_one"}]},
    "A-2": {
        "clauses": [
            {"says": "Two.", "test": "unit/test_a.py::test_two"},
            {"says": "Three.", "missing": "Not built."},
        ]
    },
    "A-3": {"clauses": [{"says": "Four.", "test": "unit/test_a.py::test_four"}]},
}


def states(**outcomes: str) -> PromiseStates:
    found = PromiseStates()
    for name, outcome in outcomes.items():
        found.add(f"tests/unit/test_a.py::{name}", outcome, ("A-1",))
    return found


def test_passed_tests_prove_their_clauses_and_the_rest_is_named() -> None:
    found = states(test_one="passed")
    found.add("tests/unit/test_a.py::test_two[x]@group", "skipped", ("A-2",))
    assert render(MANIFEST, found) == (
        "promise   clauses  proven  passed  failed  skipped\n"
        "A-1             1       1       1       0        0\n"
        "A-2             2       0       0       0        1\n"
        "A-3             1       0       0       0        0\n"
        "1 of 3 promises and 1 of 4 clauses are proven by this run.\n"
        "not proven by this run:\n"
        "  A-2      skipped: Two. (unit/test_a.py::test_two)\n"
        "  A-2      missing: Three. (Not built.)\n"
        "  A-3      not run: Four. (unit/test_a.py::test_four)\n"
        "without any test in this run: A-3\n"
    )


def test_one_failed_case_or_phase_is_a_failed_test() -> None:
    found = PromiseStates()
    found.add("tests/unit/test_a.py::test_one[1]", "passed", ("A-1",))
    found.add("tests/unit/test_a.py::test_one[2]", "failed", ("A-1",))
    found.add("tests/unit/test_a.py::test_two", "passed", ("A-2",))
    found.add("tests/unit/test_a.py::test_two", "failed", ("A-2",))  # its teardown
    assert found.of_test("unit/test_a.py::test_one") == "failed"
    assert found.of_test("unit/test_a.py::test_two") == "failed"
    assert found.of_test("unit/test_a.py::test_on") == "not run"
