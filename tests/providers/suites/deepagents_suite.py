"""LangChain's integration tests for sandboxes of deepagents, and an agent with a scripted model."""

from __future__ import annotations

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from cellwall import Sandbox
from cellwall.integrations.deepagents import CellwallBackend


class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Sandbox.create() as sandbox:
            yield CellwallBackend(sandbox)

    @property
    def sandbox_root_dir(self):
        return "/workspace/ops"
