"""The command line."""

from __future__ import annotations

AS_JSON = "cellwall.as_json"
"""The key in the `meta` of click's context that a command's `--json` sets."""
