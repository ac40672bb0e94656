"""A key, and a folder that it has signed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.core.keys import SigningKey, make_key
from unit.skills.signing import sign


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(str(tmp_path / "keys" / "test.pem"), "tester")


@pytest.fixture
def folder(tmp_path: Path, key: SigningKey) -> Path:
    place = tmp_path / "greeting"
    (place / "bin").mkdir(parents=True)
    (place / "SKILL.md").write_text("Say hello.\n")
    (place / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (place / "bin" / "hello").chmod(0o755)
    sign(place, key)
    return place


_CLOSED_WITHIN_S = 10


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = _descriptors()
    yield
    # A thread that another test of this process left behind may have one open at this moment.
    deadline = time.monotonic() + _CLOSED_WITHIN_S
    while (left := _descriptors() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
