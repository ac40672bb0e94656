"""Egress: an allowlist of hosts, a proxy outside the cell that enforces it, and fetch."""
