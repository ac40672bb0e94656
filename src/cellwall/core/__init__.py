"""Shared types, verdicts, limits, ports, events and errors.

Imports nothing else of Cellwall, so that every part can import it.
"""
