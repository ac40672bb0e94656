"""The fixture that the egress tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.egress import loopback


@pytest.fixture
def house() -> Iterator[loopback.House]:
    """Servers, names and a service, all gone after the test."""
    with loopback.house() as found:
        yield found
