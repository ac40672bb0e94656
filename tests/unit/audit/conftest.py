"""Audit logs of these tests lie in memory: each record waits for `fsync`, 5 ms on a disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"
_ROOM_BYTES = 512 * 1024 * 1024


def _has_room() -> bool:
    """A container's default is 64 MB."""
    try:
        about = os.statvfs(_MEMORY)
    except OSError:
        return False
    return os.access(_MEMORY, os.W_OK) and about.f_bavail * about.f_frsize >= _ROOM_BYTES


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not _has_room():
        yield tmp_path_factory.mktemp("audit")
        return
    path = tempfile.mkdtemp(prefix="cellwall-test-", dir=os.path.realpath(_MEMORY))
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)
