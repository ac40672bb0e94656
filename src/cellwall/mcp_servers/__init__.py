"""Other MCP servers as the gateway sees them: their definitions, pins, protocol and results."""
