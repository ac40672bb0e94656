"""The packaged table of forms."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def forms() -> dict[str, list[dict[str, Any]]]:
    """As it stands in `forms.toml`; shared, so nobody writes to it."""
    return tomllib.loads((resources.files(__package__) / "forms.toml").read_text("utf-8"))
