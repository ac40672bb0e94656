"""How the cases of a parametrised test run as one test."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tables import CallSpec2, group_cases, paths_of, run_cases, spread, take_turns


def table(*numbers: int) -> list[CallSpec2]:
    return [CallSpec2({"number": number}, _idlist=(str(number),)) for number in numbers]


def item(test: Any) -> Any:
    fixtures = SimpleNamespace(argnames=("number",))
    return SimpleNamespace(
        obj=test, name="test_number", funcargs={"number": 0}, _fixtureinfo=fixtures
    )


def test_a_sample_has_the_first_and_the_last_case_and_keeps_the_order():
    cases = list(range(100))
    samples = {most: spread(cases, most) for most in (1, 2, 4, 100, 200)}
    assert samples == {1: [99], 2: [0, 99], 4: [0, 33, 66, 99], 100: cases, 200: cases}


def test_cases_that_differ_in_one_parameter_alone_are_one_group():
    cases = [
        CallSpec2(
            {"path": path, "name": name},
            indices={"path": number, "name": place},
            _idlist=(path, name),
        )
        for number, path in enumerate(("cold", "warm"))
        for place, name in enumerate(("mount", "bpf", "ptrace"))
    ]
    assert group_cases(cases, "name") == {("cold",): cases[:3], ("warm",): cases[3:]}
    assert group_cases(cases, "path") == {
        (name,): [cases[place], cases[place + 3]]
        for place, name in enumerate(("mount", "bpf", "ptrace"))
    }


def crossed(**parameters: int) -> list[CallSpec2]:
    """All combinations of so many values of each."""
    names = list(parameters)
    places = itertools.product(*map(range, parameters.values()))
    return [CallSpec2(indices=dict(zip(names, each, strict=True))) for each in places]


def test_paths_by_turns_leave_out_no_value_and_the_other_turn_has_the_rest():
    cases = crossed(path=2, name=5)
    first, second = (take_turns(cases, "path", turn=turn) for turn in (0, 1))
    assert sorted(map(id, first + second)) == sorted(map(id, cases))
    for found in (first, second):
        assert {case.indices["name"] for case in found} == set(range(5))
        assert {case.indices["path"] for case in found} == {0, 1}


def test_a_test_without_another_parameter_runs_on_one_path_and_on_the_other_in_the_next_turn():
    cases = crossed(path=2)
    assert [take_turns(cases, "path", turn=turn) for turn in (6, 7)] == [cases[:1], cases[1:]]
    alone = crossed(path=1)  # of a test that is `only_on` one path
    assert [take_turns(alone, "path", turn=turn) for turn in (6, 7)] == [alone, alone]


def test_a_path_of_files_is_no_path_of_a_cell():
    def cases(*values: object) -> list[CallSpec2]:
        return [CallSpec2({"path": value}, indices={"path": at}) for at, value in enumerate(values)]

    assert paths_of(cases("cold", "warm")) == ["path"]
    assert paths_of(cases("a/b", "warm", ["x"])) == []


def test_paths_by_turns_have_every_pair_of_values_of_three_parameters():
    found = take_turns(crossed(path=2, name=3, mode=2), "path", turn=1)
    assert len(found) == 6
    for one, other in itertools.combinations(("path", "name", "mode"), 2):
        pairs = {(case.indices[one], case.indices[other]) for case in found}
        amounts = {"path": 2, "name": 3, "mode": 2}
        assert len(pairs) == amounts[one] * amounts[other]


def test_every_case_runs_and_each_failed_one_is_named():
    numbers = []

    def is_even(number: int) -> None:
        numbers.append(number)
        assert number % 2 == 0

    with pytest.raises(ExceptionGroup) as failure:
        run_cases(item(is_even), table(*range(1, 41)))
    assert numbers == list(range(1, 41))
    notes = [note for each in failure.value.exceptions for note in each.__notes__]
    text = failure.value.message.splitlines()
    assert text[0] == "20 of 40 cases failed"
    assert notes + text[1:] == [f"test_number[{number}] failed" for number in range(1, 41, 2)]


def test_a_skipped_case_hides_no_failure_and_no_skip():
    def skips_or_fails(number: int) -> None:
        if number == 1:
            pytest.skip("no kernel for it")
        assert number != 2

    with pytest.raises(ExceptionGroup, match="1 of 3 cases failed"):
        run_cases(item(skips_or_fails), table(1, 2, 3))
    with pytest.raises(pytest.skip.Exception, match="1 of 2 cases: 1: no kernel for it"):
        run_cases(item(skips_or_fails), table(1, 3))
