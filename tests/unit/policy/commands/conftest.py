"""Each line of a module's tables becomes a case of the tests that all of them share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("unit.policy.commands.opening")

from unit.policy.commands.opening import Tables, lines, table  # noqa: E402  after the line above


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.cls is None or not issubclass(metafunc.cls, Tables):
        return
    if "everyday" in metafunc.fixturenames:
        metafunc.parametrize("everyday", lines(metafunc.module.EVERYDAY))
    else:
        metafunc.parametrize(("command", "found"), table(metafunc.module.FOUND))
