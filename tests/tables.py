"""The cases of a parametrised test run as one test, and `--fast` runs a sample of them.

pytest and xdist take about 4 ms of processor time for each test, whatever the test does; the 20,000
cases that compare plain data took less than that. A test is a table if all its parameters are plain
values and its cases share their fixtures: those of a module or a session, and those which every test
has. `@pytest.mark.table("name")` makes one of the cases that differ in this parameter alone, such as
the attacks of one program that was run before. Each case of a table runs, also after another has
failed, and a failure names every failed case. `--each-case`, `-k`, `--pdb` and a case on the command line (`test_x[case]`) give each case a test of
its own again.

A test that runs on both paths of a cell takes the paths by turns in a whole run: each of its cases
runs on one of them, on the other in another run, and with `--long` on both. Of the tests without
further parameters, half run on either path.

`@pytest.mark.sample(most)` makes a whole run take this many of the cases, in equal steps from the first
to the last: for cases that are alike and expensive. With `--long`, and for whoever runs the file, all run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from _pytest.python import CallSpec2

# What every test has. A case that needs a state directory of its own asks for `state_home`.
_SHARED_FIXTURES = frozenset(
    {
        *("state_home", "no_log_is_left_open", "no_supervisor_is_left"),
        *("monkeypatch", "tmp_path_factory", "request"),
    }
)
# Tests of the other folders start cells and servers: one after the other in one test would hide
# which of them hangs.
_TABLE_FOLDERS = ("tests/unit/", "tests/contract/")
_MAX_SHOWN = 10
MAX_FAST_TABLE_CASES = 12
MAX_FAST_TESTS = 6
# The parameters that say how cells are made, and their values: to other tests a path is one of files.
_PATHS = frozenset({"path", "own_supervisor", "shared_supervisor"})
_PATH_VALUES = ("cold", "warm")


class Tables:
    """The pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._is_fast = config.getoption("--fast")
        names_a_case = any("[" in str(word) for word in config.args)
        self._is_each = (
            config.getoption("--each-case") or option.keyword or option.usepdb or names_a_case
        )
        is_whole = [os.path.basename(word) for word in config.args] == ["tests"]
        self._takes_turns = is_whole and not config.getoption("--long")
        # The same in all workers of a run.
        self._turn = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", "").encode())
        self._tables: dict[int, tuple[CallSpec2, list[CallSpec2]]] = {}
        """The first case without its name, for which pytest makes the test, and all cases."""

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        yield
        if self._is_each or len(metafunc._calls) < 2:
            return
        is_table = _is_table(metafunc)
        has_table = metafunc.definition.get_closest_marker("table") is not None
        if self._takes_turns and not has_table:
            for name in paths_of(metafunc._calls):
                turn = self._turn + zlib.crc32(metafunc.definition.nodeid.encode())
                metafunc._calls[:] = take_turns(metafunc._calls, name, turn=turn)
        if self._takes_turns and (mark := metafunc.definition.get_closest_marker("sample")):
            metafunc._calls[:] = spread(metafunc._calls, *mark.args)
        if self._is_fast:
            most = MAX_FAST_TABLE_CASES if is_table else MAX_FAST_TESTS
            metafunc._calls[:] = spread(metafunc._calls, most)
        if is_table:
            metafunc._calls[:] = [self._add(metafunc._calls, kept_ids=())]
        elif (mark := metafunc.definition.get_closest_marker("table")) is not None:
            metafunc._calls[:] = [
                self._add(cases, kept_ids=ids)
                for ids, cases in group_cases(metafunc._calls, *mark.args).items()
            ]

    def _add(self, cases: Sequence[CallSpec2], *, kept_ids: Sequence[str]) -> CallSpec2:
        """The case for which pytest makes the test of all of them."""
        first = replace(cases[0], _idlist=kept_ids)
        self._tables[id(first)] = first, [*cases]
        return first

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        table = self._tables.get(id(getattr(pyfuncitem, "callspec", None)))
        if table is None:
            return None
        run_cases(pyfuncitem, table[1])
        return True


def spread(cases: Sequence[Any], most: int) -> list[Any]:
    """At most this many cases, in equal steps from the first to the last: the same in each run."""
    if len(cases) <= most:
        return list(cases)
    if most == 1:
        return [cases[-1]]
    return [cases[place * (len(cases) - 1) // (most - 1)] for place in range(most)]


def paths_of(cases: Sequence[CallSpec2]) -> list[str]:
    """The parameters of these cases that say how cells are made."""
    return [
        name
        for name in sorted(_PATHS & cases[0].indices.keys())
        if all(case.params.get(name) in _PATH_VALUES for case in cases)
    ]


def take_turns(cases: Sequence[CallSpec2], name: str, *, turn: int) -> list[CallSpec2]:
    """Of each combination of the other parameters, one value of this one.

    Their places together decide which, so that every value of each parameter runs where there is
    another one; of three parameters, every pair of values.
    """
    values = {case.indices[name] for case in cases}
    return [case for case in cases if (sum(case.indices.values()) + turn) % len(values) == 0]


def group_cases(cases: Sequence[CallSpec2], name: str) -> dict[tuple[str, ...], list[CallSpec2]]:
    """The cases that differ in this parameter alone, by the ids of their other parameters."""
    by_others: dict[tuple[tuple[str, int], ...], list[CallSpec2]] = {}
    for case in cases:
        others = tuple(each for each in case.indices.items() if each[0] != name)
        by_others.setdefault(others, []).append(case)
    place = list(cases[0].indices).index(name)
    return {
        tuple(id_ for number, id_ in enumerate(found[0]._idlist) if number != place): found
        for found in by_others.values()
    }


def _is_table(metafunc: pytest.Metafunc) -> bool:
    definition = metafunc.definition
    return (
        definition.nodeid.startswith(_TABLE_FOLDERS)
        and not hypothesis.is_hypothesis_test(metafunc.function)
        and not any(call.marks for call in metafunc._calls)
        and set(metafunc._params_directness.values()) == {"direct"}
        and all(_is_shared(name, metafunc) for name in metafunc.fixturenames)
        and _SHARED_FIXTURES.isdisjoint(definition._fixtureinfo.argnames)
    )


def _is_shared(name: str, metafunc: pytest.Metafunc) -> bool:
    if name in metafunc._params_directness or name in _SHARED_FIXTURES:
        return True
    definitions = metafunc.definition._fixtureinfo.name2fixturedefs.get(name)
    return definitions is not None and definitions[-1].scope != "function"


def run_cases(item: pytest.Function, cases: Sequence[CallSpec2]) -> None:
    shared = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    failures: list[BaseException] = []
    skipped: list[str] = []
    for case in cases:
        try:
            item.obj(**{name: case.params.get(name, value) for name, value in shared.items()})
        except pytest.skip.Exception as reason:
            skipped.append(f"{case.id}: {reason}")
        except (Exception, pytest.fail.Exception) as failure:
            failure.add_note(f"{item.name}[{case.id}] failed")
            failures.append(failure)
    if failures:
        unshown = [failure.__notes__[-1] for failure in failures[_MAX_SHOWN:]]
        text = "\n".join((f"{len(failures)} of {len(cases)} cases failed", *unshown))
        raise BaseExceptionGroup(text, failures[:_MAX_SHOWN])
    if skipped:
        pytest.skip(f"{len(skipped)} of {len(cases)} cases: {'; '.join(skipped)}")
