"""One service for all of these tests, and the real SDKs as its clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2b_code_interpreter import Sandbox

from interfaces.http.running_service import RunningService, running_service


def options(service: RunningService, user: str = "user") -> dict[str, Any]:
    """What the three variables of the guide say."""
    return {
        "api_key": service.tokens[user],
        "api_url": f"{service.url}/e2b",
        "sandbox_url": f"{service.url}/e2b",
        "retries": 0,
    }


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("cellwall-e2b")) as found:
        yield found


@pytest.fixture(scope="package")
def sandbox(service: RunningService) -> Iterator[Sandbox]:
    """For tests that leave it as it was. They may be far apart in a whole run."""
    with Sandbox.create(timeout=6 * 3600, **options(service)) as found:
        yield found
