"""Where the program `cellwall-cell` is; the keeper and the holder are lives of it."""

from __future__ import annotations

import functools
import os
from importlib import resources

from cellwall.core.errors import LayerMissing


@functools.cache
def cell_program() -> str:
    """Where `cellwall-cell` is; it is built when Cellwall is installed."""
    path = os.fspath(resources.files("cellwall.sandbox.linux").joinpath("cellwall-cell"))  # type: ignore[call-overload]  # a real file here: the wheel is never run from a zip
    if not os.access(path, os.X_OK):
        raise LayerMissing(
            "the program cellwall-cell is missing from this installation",
            hint="Install Cellwall again with `pip install --force-reinstall .` or `./dev setup`.",
            code="CW-LAYER-CELL",
        )
    return str(path)
