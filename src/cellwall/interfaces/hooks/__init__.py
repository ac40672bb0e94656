"""Agents ask here before they use a tool: Claude Code's hook protocol, its settings, its SDK."""
