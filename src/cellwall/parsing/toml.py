"""TOML of untrusted origin: lock files of a workspace, `pyproject.toml` of a source archive. Pure.

Bounded as the files that configure Cellwall: tomllib takes time and memory by the square of the
parts of one key, 4 GiB for 64 KiB of `a.a.a…`.
"""

from __future__ import annotations

import tomllib
from typing import Any

from cellwall.config.settings_file import find_deep_line

_MAX_NESTING = 32


def load_untrusted_toml(data: bytes) -> dict[str, Any]:
    """The document; raises ValueError for another text."""
    text = data.decode("utf-8")
    if find_deep_line(text, most=_MAX_NESTING) is not None:
        raise ValueError(f"nested more than {_MAX_NESTING} deep")
    return tomllib.loads(text)
