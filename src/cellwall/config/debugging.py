"""Whether tracebacks are shown: they hold host paths, environment and secrets (ERR-1)."""

# ruff: noqa: PLC0415  # late imports: the configuration loads only where traces are asked for

from __future__ import annotations

import os

_VARIABLE = "CELLWALL_DEBUG"


def shows_traces() -> bool:
    """`CELLWALL_DEBUG=1` requests them, and only the development profile permits them. An
    unreadable configuration permits nothing.
    """
    if os.environ.get(_VARIABLE) != "1":
        return False
    try:
        from cellwall.config.load import load_settings

        return load_settings(environ=os.environ).profile == "development"
    except Exception:  # noqa: BLE001  # any error means no tracebacks
        return False
