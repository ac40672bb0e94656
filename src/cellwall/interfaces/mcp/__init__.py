"""Cellwall's tools for agents over the Model Context Protocol (INT-1)."""
