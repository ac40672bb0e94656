"""Decides on each operation by rules. Pure; no matching rule means DENY."""
