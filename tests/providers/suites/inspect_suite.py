"""Inspect AI's own conformance suite for sandboxes, and an evaluation with a scripted model."""

from __future__ import annotations

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403  # how the suite is used

from cellwall.integrations.inspect import CellwallSandboxConfig, CellwallSandboxEnvironment


@pytest.fixture
async def sandbox_env():
    made = await CellwallSandboxEnvironment.sample_init("suite", None, {})
    yield made["default"]
    await CellwallSandboxEnvironment.sample_cleanup("suite", None, made, interrupted=False)
