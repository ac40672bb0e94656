"""Pydantic AI's conformance suite for workspaces, and an agent with a scripted model."""

from __future__ import annotations

import pytest
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from cellwall.integrations.pydantic_ai import CellwallWorkspace


@pytest.fixture
def anyio_backend():
    return "asyncio"


class TestWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    async def backend(self):
        workspace = CellwallWorkspace()
        yield workspace
        await workspace.kill()

    @pytest.fixture
    def fresh_backend(self):
        return CellwallWorkspace

    @pytest.fixture
    def attach_backend(self):
        return lambda ref: CellwallWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        return CellwallWorkspace.kill
