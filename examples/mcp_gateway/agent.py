"""The MCP gateway: a server of a stranger behind walls, and an agent that uses its tool.

    cellwall mcp gateway add tea --workspace examples/mcp_gateway:ro -- python3 /workspace/server.py
    cellwall mcp gateway review tea --accept      # read what it offers; confirm at the terminal
    python examples/mcp_gateway/agent.py

What it shows:

- the server runs in a sandbox of its own that sees this folder, read-only, and no other files;
- you have no rule for the tool, so you are asked about the call;
- the result is marked as data of the server;
- after its first call the server gives its tool another description. The gateway compares it with
  the one that you have accepted, withdraws the tool, and denies the next call until you review it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult

TOOL = "tea-price"


async def ask_person(_: object, question: Any) -> ElicitResult:
    """Shows the question to you, as the agent's client does."""
    print("\n".join(f"  ? {line}" for line in question.message.splitlines()))
    if (await asyncio.to_thread(input, "  [y/N] ")).lower() == "y":
        return ElicitResult(action="accept", content={"answer": "allow once"})
    return ElicitResult(action="decline")


async def main() -> None:
    """The agent's loop, with a scripted model: it asks for two prices."""
    server = StdioServerParameters(
        command=str(Path(sys.executable).with_name("cellwall")),
        args=["mcp", "--gateway"],
        env=dict(os.environ),
    )
    async with Client(stdio_client(server), elicitation_callback=ask_person) as agent:
        for tea in ("assam", "sencha"):
            offered = [tool.name for tool in (await agent.list_tools()).tools]
            print(f"{'offered' if TOOL in offered else 'not offered any more'}: {TOOL}")
            print(f"-> {TOOL} {tea}")
            result = await agent.call_tool(TOOL, {"tea": tea})
            print(f"<- {'refused' if result.is_error else 'ok'}")
            print("\n".join(part.text for part in result.content), end="\n\n")
            await asyncio.sleep(1)  # a real model takes at least as long for its next step


if __name__ == "__main__":
    asyncio.run(main())
