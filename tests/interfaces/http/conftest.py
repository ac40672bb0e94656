"""One service for all tests of a module that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from interfaces.http.running_service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("cellwall-service")) as found:
        yield found


@pytest.fixture
def user(service: RunningService) -> Iterator[httpx.Client]:
    with service.client("user") as client:
        yield client
