"""A private home for each vault, and a look at what is left open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = _open()
    yield
    # What earlier tests let go of may be closed meanwhile; nothing may be there that was not.
    assert _open() - before == set()


def _open() -> set[tuple[str, str]]:
    """Every descriptor, and what it leads to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found
