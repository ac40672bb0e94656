"""Shared types, verdicts, limits, ports, events and errors.

Imports nothing else of Cellwall, so that every part can import it.
"""

import time

LOADED_AT_S = time.time()
"""Before any other module of Cellwall: a file changed later is not the code that runs here."""
