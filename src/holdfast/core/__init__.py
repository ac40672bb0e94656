"""The words everybody shares: types, verdicts, limits, ports, events, errors.

Imports nothing else of Holdfast, so that every part can import it.
"""
