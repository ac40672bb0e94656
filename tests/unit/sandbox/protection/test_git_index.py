"""A checkout that could not replace a protected file is told, for every form of the index (FS-8)."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection.git_files import left_as_they_were, read_index

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
PROTECTED = frozenset({"CLAUDE.md", ".vscode", "docs/sub/AGENTS.md"})


def git(cwd: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=cwd, env=ENV, capture_output=True, check=True)


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("version", [2, 3, 4])
def test_protected_files_of_another_branch_are_told_and_no_others(tmp_path: Path, version: int):
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "index.version", str(version))
    write(root, **{"CLAUDE.md": "1", "a.txt": "1", "docs/sub/AGENTS.md": "same"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    git(root, "checkout", "-qb", "other")
    write(root, **{"CLAUDE.md": "2", "a.txt": "2", "b/c.txt": "2", ".vscode/x.json": "2"})
    git(root, "add", "-A")
    if version == 3:
        write(root, later="x")
        git(root, "add", "-N", "later")  # what makes git write the extended form
    with FileTree.open(root) as tree:
        there = read_index(tree)
        assert struct.unpack_from(">I", there, 4) == (version,)
        # `git add` itself leaves the index and the disk agreeing.
        assert left_as_they_were(tree, PROTECTED, b"", there) == ()
        write(root, **{"CLAUDE.md": "1"})  # as covered during the checkout
        (root / ".vscode/x.json").unlink()
        told = [each.message for each in left_as_they_were(tree, PROTECTED, b"", there)]
        assert [text.split("'")[1] for text in told] == [".vscode/x.json", "CLAUDE.md"]
        # Once told, the same index tells nothing.
        assert left_as_they_were(tree, PROTECTED, there, there) == ()


@pytest.mark.requirement("RED-2")
@given(st.binary(max_size=400), st.sampled_from([2, 3, 4]), st.integers(0, 2**32 - 1))
def test_an_index_that_code_wrote_is_read_without_harm(data: bytes, version: int, count: int):
    hostile = struct.pack(">4sII", b"DIRC", version, count) + data
    with FileTree.open("/") as tree:
        left_as_they_were(tree, PROTECTED, b"", hostile)
