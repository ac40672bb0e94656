"""How the tests are handed out to the workers."""

from __future__ import annotations

import pytest

from scheduling import find_scope, rank_scope


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
        "tests/interfaces/test_cli.py": 1,
        "tests/adversarial/test_limits.py": 1,
        "group": 1,
    }
    assert sorted(sizes, key=lambda scope: rank_scope(scope, sizes[scope])) == [
        "group",
        "tests/adversarial/test_limits.py",
        "tests/interfaces/test_cli.py",
        "tests/unit/test_large.py",
        "tests/unit/test_small.py",
    ]
