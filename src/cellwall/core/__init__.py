"""The words everybody shares: types, verdicts, limits, ports, events, errors.

Imports nothing else of Cellwall, so that every part can import it.
"""
