"""The conformance suite on a house: through all the steps, as every other action."""

from __future__ import annotations

from cellwall.core.types import WorkspaceRequest
from cellwall.runtime.wiring import House, principal
from cellwall.sandbox.conformance import CheckResult, run_conformance

__all__ = ["CheckResult", "conformance"]


async def conformance(house: House, *, interface: str) -> list[CheckResult]:
    """Every check on this house's sandbox, one after the other."""
    with house.session(WorkspaceRequest()) as session_id:
        return await run_conformance(
            house.runtime.perform,
            principal=principal(interface),
            session_id=session_id,
            limits=house.limits,
        )
