"""Trees of earlier installations: found whole and unchanged, or not at all."""

from __future__ import annotations

import os

import pytest

from cellwall.core.network import HostReply
from cellwall.packages import kept_trees
from cellwall.packages.kept_trees import KeptTree, KeptTrees, RegistryAnswer
from cellwall.packages.registry.messages import RegistryRequest

REQUEST = RegistryRequest("GET", "pypi.org", "/simple/zebra/", "a/b", scheme="http")
TREE = KeptTree(
    (RegistryAnswer.of(REQUEST, HostReply(200, "text/html", headers=(("etag", '"1"'),))),),
    b"600 1 zebra.py\n\n\n",
)
SUBJECT = ("python", "zebra")


@pytest.fixture
def trees(tmp_path):
    return KeptTrees(str(tmp_path / "trees"))


def entry_of(tmp_path):
    (name,) = os.listdir(tmp_path / "trees")
    return tmp_path / "trees" / name


@pytest.mark.requirement("PKG-1")
def test_a_tree_is_that_of_its_request_alone(trees):
    assert trees.find(SUBJECT) is None
    trees.keep(SUBJECT, TREE)
    assert trees.find(SUBJECT) == TREE
    assert TREE.answers[0].request == REQUEST
    assert trees.find(("python", "zebra", "")) is None
    assert trees.find(("pythonzebra",)) is None


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"zebra.py", b"zebrb.py"),
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"[]\n" + data,
        lambda data: b"\xff\n",
        lambda data: data.replace(b'"GET"', b"[[]]"),
        lambda data: data.replace(b"200,", b'"200",'),
        lambda data: b"[" * 100_000 + b"\n" + data,
        lambda _: b"",
    ],
)
def test_a_changed_tree_is_not_found_and_removed(trees, tmp_path, change):
    trees.keep(SUBJECT, TREE)
    path = entry_of(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    assert trees.find(SUBJECT) is None
    assert not path.exists()
    trees.keep(SUBJECT, TREE)
    assert trees.find(SUBJECT) == TREE


@pytest.mark.requirement("PKG-5")
def test_a_tree_that_others_can_write_or_that_is_a_link_is_not_used(trees, tmp_path):
    trees.keep(SUBJECT, TREE)
    path = entry_of(tmp_path)
    path.chmod(0o620)
    assert trees.find(SUBJECT) is None
    trees.keep(SUBJECT, TREE)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert trees.find(SUBJECT) is None
    # The control: the same bytes in their place.
    os.rename(tmp_path / "elsewhere", path)
    assert trees.find(SUBJECT) == TREE


@pytest.mark.requirement("PKG-5")
def test_a_tree_under_the_name_of_another_request_is_not_used(trees, tmp_path):
    """Else a rename in the folder would install other packages than those that were asked for."""
    other, tree = ("python", "giraffe"), KeptTree(TREE.answers, b"other")
    trees.keep(SUBJECT, TREE)
    path = entry_of(tmp_path)
    data = path.read_bytes()
    trees.keep(other, tree)
    (of_other,) = set((tmp_path / "trees").iterdir()) - {path}
    of_other.write_bytes(data)
    assert trees.find(other) is None
    assert trees.find(SUBJECT) == TREE  # the control: the same bytes under their own name


@pytest.mark.requirement("PKG-5")
def test_trees_in_a_folder_that_others_can_write_or_that_is_a_link_are_not_used(trees, tmp_path):
    trees.keep(SUBJECT, TREE)
    folder = tmp_path / "trees"
    folder.chmod(0o770)
    assert trees.find(SUBJECT) is None
    trees.keep(("python", "giraffe"), TREE)
    assert len(list(folder.iterdir())) == 1
    folder.chmod(0o700)
    assert trees.find(SUBJECT) == TREE  # the control
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert trees.find(SUBJECT) is None


def test_the_trees_that_were_not_used_for_longest_are_trimmed(trees, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_trees, "_MAX_ENTRIES", 3)
    for moment, name in enumerate("abc"):
        trees.keep((name,), TREE)
        newest = max((tmp_path / "trees").iterdir(), key=lambda each: each.stat().st_mtime)
        os.utime(newest, (moment, moment))
    trees.find("a")  # used now
    trees.keep(("d",), TREE)
    assert [trees.find((each,)) is None for each in "abcd"] == [False, True, False, False]


def test_a_tree_that_is_too_large_is_not_kept(trees, monkeypatch):
    monkeypatch.setattr(kept_trees, "MAX_ARCHIVE_BYTES", len(TREE.archive) - 1)
    trees.keep(SUBJECT, TREE)
    assert trees.find(SUBJECT) is None
