"""Hooks of coding agents: their protocols, their settings files, and the answers."""
