"""Allowed destinations: host names, addresses, rules, resolution and connection."""
