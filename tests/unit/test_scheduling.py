"""How the tests are handed out to the workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling import SLOW_FILES, ScopeSeconds, find_scope, rank_scope, slow_files


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/unit/test_a.py::test_b", "tests/unit/test_a.py"),
        ("tests/unit/test_a.py::TestC::test_b[x@y]", "tests/unit/test_a.py"),
        ("tests/unit/test_a.py::test_b[x]@group", "group"),
        ("tests/unit/test_a.py::test_b@group", "group"),
    ],
)
def test_a_file_is_run_by_one_worker_and_so_is_a_group(nodeid, scope):
    assert find_scope(nodeid) == scope


def test_groups_and_slow_folders_come_first_and_large_files_before_small_ones():
    sizes = {
        "tests/unit/test_small.py": 1,
        "tests/unit/test_large.py": 9,
        "tests/interfaces/test_new.py": 1,
        "tests/adversarial/test_new_limits.py": 1,
        "group": 1,
    }
    assert sorted(sizes, key=lambda scope: rank_scope(scope, sizes[scope], {})) == [
        "group",
        "tests/adversarial/test_new_limits.py",
        "tests/interfaces/test_new.py",
        "tests/unit/test_large.py",
        "tests/unit/test_small.py",
    ]


def test_in_a_new_clone_the_files_that_are_known_to_be_slow_come_after_the_groups():
    slow = sorted(SLOW_FILES, key=SLOW_FILES.__getitem__, reverse=True)
    assert all(Path(__file__).parents[2].joinpath(file).is_file() for file in slow)
    scopes = ["tests/adversarial/test_new.py", slow[-1], slow[0], "group"]
    assert sorted(scopes, key=lambda scope: rank_scope(scope, 1, {})) == [
        "group",
        slow[0],
        slow[-1],
        "tests/adversarial/test_new.py",
    ]


def test_the_slow_files_of_a_run_are_those_that_take_seconds_and_still_exist():
    here, other = "tests/unit/test_scheduling.py", "tests/unit/test_tables.py"
    seconds = {here: 4.0, other: 60.04, "tests/unit/test_no_more.py": 9.0, "group": 9.0}
    assert list(slow_files({**seconds, "tests/conftest.py": 3.9}).items()) == [
        (other, 60.0),
        (here, 4.0),
    ]


def test_what_took_long_comes_before_what_did_not_and_new_files_before_both():
    sizes = {"tests/unit/test_quick.py": 9, "tests/unit/test_slow.py": 1, "group": 1}
    seconds = {"tests/unit/test_quick.py": 0.1, "tests/unit/test_slow.py": 9.0}
    assert sorted(sizes, key=lambda scope: rank_scope(scope, sizes[scope], seconds)) == [
        "group",
        "tests/unit/test_slow.py",
        "tests/unit/test_quick.py",
    ]


def test_the_seconds_of_whole_files_are_kept_for_the_next_run():
    class Cache(dict):
        set = dict.__setitem__

    class Config:
        cache = Cache({"cellwall/seconds-fast": {"old": 1.0}})
        getoption = staticmethod(lambda name: name == "--fast")

    seconds = ScopeSeconds(Config())
    seconds.add("whole", 1.0, is_last=False)
    seconds.add("whole", 2.0, is_last=True)
    seconds.add("half", 1.0, is_last=False)
    seconds.pytest_sessionfinish()
    assert Config.cache["cellwall/seconds-fast"] == {"old": 1.0, "whole": 3.0}


def test_without_the_cache_nothing_is_known_and_nothing_is_kept():
    class Config:
        getoption = staticmethod(lambda name: False)

    seconds = ScopeSeconds(Config())
    seconds.add("whole", 1.0, is_last=True)
    seconds.pytest_sessionfinish()
    assert ScopeSeconds(Config()).known == {}
