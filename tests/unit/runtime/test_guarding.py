"""What is kept between processes is used only where nobody else can have changed it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.runtime.guarding import CompiledRuleCache


def made(folder: Path, source: bytes = b"source") -> tuple[bytes, bool]:
    """What comes back, and whether it was made now."""
    calls: list[int] = []

    def make() -> bytes:
        calls.append(1)
        return b"made of " + source

    return CompiledRuleCache(str(folder))(source, make), bool(calls)


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_it_is_made_once_for_each_source(tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    assert made(folder) == (b"made of source", True)
    assert made(folder) == (b"made of source", False)
    assert made(folder, b"other") == (b"made of other", True)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"other" + path.read_bytes()),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o644),
        lambda path: os.link(path, path.with_name("twice")),
        lambda path: (path.rename(path.parent.parent / "away"), path.symlink_to("../away")),
        lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
    ],
    ids=["altered", "cut", "empty", "open to others", "linked", "a link", "a fifo"],
)
def test_what_somebody_may_have_changed_is_made_again(tmp_path: Path, change) -> None:
    folder = tmp_path / "prepared"
    made(folder)
    change(the_file(folder))
    assert made(folder)[1]


def test_where_nothing_can_be_kept_it_is_made_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert made(tmp_path / "file" / "below") == (b"made of source", True)


def test_old_ones_are_not_kept_for_ever(tmp_path: Path) -> None:
    for number in range(200):
        made(tmp_path / "prepared", b"%d" % number)
    assert len(list((tmp_path / "prepared").iterdir())) < 70
