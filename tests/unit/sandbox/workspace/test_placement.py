"""The flag by which ext4 spreads workspaces over its block groups."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.sandbox.workspace.placement import spread_directories
from conftest import need

GET_FLAGS, TOP_DIRECTORY = 0x80086601, 0x00020000


def flags_of(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, GET_FLAGS, bytes(8)), sys.byteorder)
    finally:
        os.close(descriptor)


def test_new_directories_are_spread_on_ext4_and_other_flags_stay(tmp_path):
    shown = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    )
    if shown.stdout.strip() != "ext2/ext3":
        pytest.skip("the temporary folder is not on ext4")
    before = flags_of(tmp_path)
    assert not before & TOP_DIRECTORY
    for _ in range(2):
        spread_directories(str(tmp_path))
        assert flags_of(tmp_path) == before | TOP_DIRECTORY


def test_a_file_system_without_the_flag_is_left_as_it_is():
    need(os.path.isdir("/dev/shm"), "a tmpfs at /dev/shm")
    spread_directories("/dev/shm")
    spread_directories("/proc/self")
    spread_directories("/no/such/folder")
