"""New directories and symlinks get the owner of their directory, and nothing else does (ISO-1)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.sandbox.files.descriptors import make_one_dir, make_symlink
from conftest import need

FIRST, SECOND = 1_900_000_001, 1_900_000_002


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the first user, with a private directory of the second one."""
    need(os.geteuid() == 0, "root: only root gives files to others")
    os.chown(tmp_path, FIRST, FIRST)
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", SECOND, SECOND)
    return tmp_path


def _facts(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def _call(make: Callable[[int], None], folder: Path) -> None:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        make(fd)
    finally:
        os.close(fd)


@pytest.mark.requirement("ISO-1")
def test_a_new_directory_and_a_symlink_belong_to_the_owner_of_theirs(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        _call(lambda fd: make_one_dir(fd, "new"), folder)
        _call(lambda fd: make_one_dir(fd, "exact", mode=0o750), folder)
        _call(lambda fd: make_symlink("/nowhere", fd, "link"), folder)
    finally:
        os.umask(before)
    assert _facts(folder / "new") == (FIRST, FIRST, 0o755)
    assert _facts(folder / "exact") == (FIRST, FIRST, 0o700)
    assert _facts(folder / "link")[:2] == (FIRST, FIRST)
    assert os.readlink(folder / "link") == "/nowhere"


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("name", ["mkdir", "symlink"])
def test_what_code_puts_in_the_place_of_the_new_name_keeps_owner_and_mode(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a directory may rename everything in it, between two of our calls."""
    make = getattr(os, name)

    def make_and_swap(*arguments: object, dir_fd: int) -> None:
        make(*arguments, dir_fd=dir_fd)
        os.rename("new", "moved", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        os.rename("theirs", "new", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, name, make_and_swap)
    with pytest.raises(FileExistsError):
        _call(
            lambda fd: (
                make_one_dir(fd, "new") if name == "mkdir" else make_symlink("/nowhere", fd, "new")
            ),
            folder,
        )
    assert _facts(folder / "new") == (SECOND, SECOND, 0o700)
