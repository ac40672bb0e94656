"""What a process or a watch needs to know of the client that reads it."""

from __future__ import annotations

from typing import Any, Protocol

from cellwall.core.types import Principal
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox

Message = dict[str, Any]
"""One message of envd, as JSON."""


class SandboxCaller(Protocol):
    """A client that may use one sandbox; see `SandboxAccess`."""

    @property
    def sandbox(self) -> OwnedSandbox: ...

    async def principal(self) -> Principal:
        """For the next action; raises once the client may not use the sandbox any more."""
