"""Layers of snapshots: what a copy keeps, and that a merge shows what overlayfs shows."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from cellwall.sandbox.snapshots.layer_files import copy_layer, measure, merge_layers

pytestmark = pytest.mark.requirement("FS-9")
ANY_SIZE = 1 << 40


def made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def fill(root: Path, **files: str) -> Path:
    """`a__b="x"` is the file a/b; the content "-" removes the name below, as overlayfs does."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "-":
            os.mknod(path, stat.S_IFCHR | 0o600, 0)
        else:
            path.write_text(content)
    return root


def content_of(root: Path) -> dict[str, str]:
    files = sorted(each for each in root.rglob("*") if not each.is_dir())
    return {str(each.relative_to(root)): each.read_text() for each in files}


def test_a_copy_holds_files_and_links_but_nothing_that_acts(tmp_path):
    source, outside = fill(made(tmp_path / "s"), a="one", d__b="two"), tmp_path / "secret"
    outside.write_text("not in the workspace")
    (source / "out").symlink_to(outside)
    (source / "up").symlink_to("../../..")
    os.link(source / "a", source / "same")
    (source / "setuid").write_text("")
    (source / "setuid").chmod(0o6755)
    os.mkfifo(source / "pipe")
    os.mknod(source / "removed", stat.S_IFCHR | 0o600, 0)  # code made it; it removed nothing
    os.setxattr(source / "d", "user.overlay.opaque", b"y")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    sparse = source / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    (source / "closed").mkdir(0o000)
    os.utime(source / "a", ns=(1, 2))
    target = made(tmp_path / "t")
    size = copy_layer(str(source), str(target), is_upper=False, max_bytes=ANY_SIZE)
    names = {each.name for each in target.iterdir()}
    assert names == {"a", "d", "out", "up", "same", "setuid", "sparse", "closed"}
    assert os.readlink(target / "out") == str(outside)
    assert (target / "out").lstat().st_nlink == 1
    assert (target / "a").stat().st_ino == (target / "same").stat().st_ino
    assert (target / "a").stat().st_ino != (source / "a").stat().st_ino
    assert stat.S_IMODE((target / "setuid").stat().st_mode) == 0o755
    assert (sparse.stat().st_size, (target / "sparse").stat().st_blocks) == (1 << 40, 0)
    assert os.listxattr(target / "d") == []
    assert (target / "a").stat().st_mtime_ns == 2
    for root in (source, target):
        assert stat.S_IMODE((root / "closed").stat().st_mode) == 0
    assert size.files == 9
    assert measure(str(target)).files == size.files


def test_a_copy_of_an_upper_layer_still_removes_names_below_it(tmp_path):
    upper = fill(made(tmp_path / "u"), gone="-", d__new="x")
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    copied = made(tmp_path / "c")
    copy_layer(str(upper), str(copied), is_upper=True, max_bytes=ANY_SIZE)
    base = fill(made(tmp_path / "b"), gone="old", kept="old", d__old="old")
    merged = made(tmp_path / "m")
    merge_layers([str(copied), str(base)], str(merged), link=True, max_bytes=ANY_SIZE)
    assert content_of(merged) == {"kept": "old", "d/new": "x"}


@pytest.mark.parametrize("link", [True, False])
def test_a_merge_shows_the_topmost_of_each_name(tmp_path, link):
    top = fill(made(tmp_path / "1"), a="1", x__y="-", was_dir="file", d__e__f="1")
    middle = fill(made(tmp_path / "2"), a="2", b="-", x__y="2", x__z="2", d__e="-", c__d="2")
    base = fill(
        made(tmp_path / "3"), a="3", b="3", x__y="3", x__w="3", was_dir__in="3", d__e__g="3", c="3"
    )
    merged = made(tmp_path / "m")
    merge_layers(list(map(str, (top, middle, base))), str(merged), link=link, max_bytes=ANY_SIZE)
    assert content_of(merged) == {
        "a": "1",
        "c/d": "2",
        "d/e/f": "1",
        "was_dir": "file",
        "x/w": "3",
        "x/z": "2",
    }
    assert ((merged / "x/w").stat().st_ino == (base / "x/w").stat().st_ino) is link


def test_a_copy_stops_at_its_bound(tmp_path):
    source = fill(made(tmp_path / "s"), a="x" * 100_000)
    with pytest.raises(OSError, match="quota") as refused:
        copy_layer(str(source), str(made(tmp_path / "t")), is_upper=False, max_bytes=4096)
    assert refused.value.errno == errno.EDQUOT
