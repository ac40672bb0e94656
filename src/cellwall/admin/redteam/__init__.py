"""Runs the attacks of `cellwall.redteam` against this host and configuration (RED-1)."""
