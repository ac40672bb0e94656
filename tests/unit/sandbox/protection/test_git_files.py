"""Programs that git takes from the working tree are found, wherever the settings lie (FS-8).

Each case is proved with the real git: a hook that code writes there runs on the host.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection.git_files import is_within_hooks
from cellwall.sandbox.protection.indirect_paths import indirect_paths, instruction_targets
from cellwall.sandbox.protection.protected_paths import scan

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(cwd: Path, *words: str) -> None:
    environment = ENV | {"HOME": os.environ["HOME"]}
    subprocess.run(["git", *words], cwd=cwd, env=environment, capture_output=True, check=False)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "repo").mkdir()
    git(tmp_path / "repo", "init", "-q", "-b", "main")
    git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "one")
    return tmp_path


def submodule(base: Path) -> tuple[Path, str]:
    git(base, "clone", "-q", "repo", "other")
    git(base / "repo", "-c", "protocol.file.allow=always", "submodule", "add", f"{base}/other", "s")
    git(base / "repo/s", "config", "core.hooksPath", "tools/h")
    return base / "repo", "s"


def linked_worktree_inside(base: Path) -> tuple[Path, str]:
    git(base / "repo", "config", "core.hooksPath", "tools/h")
    git(base / "repo", "worktree", "add", "-q", "trees/w")
    return base / "repo", "trees/w"


def linked_worktree_is_the_workspace(base: Path) -> tuple[Path, str]:
    git(base / "repo", "config", "core.hooksPath", "tools/h")
    git(base / "repo", "worktree", "add", "-q", "../w")
    return base / "w", "."


def worktree_with_settings_of_its_own(base: Path) -> tuple[Path, str]:
    git(base / "repo", "config", "extensions.worktreeConfig", "true")
    git(base / "repo", "worktree", "add", "-q", "w")
    git(base / "repo/w", "config", "--worktree", "core.hooksPath", "tools/h")
    return base / "repo", "w"


def folder_of_a_repository(base: Path) -> tuple[Path, str]:
    git(base / "repo", "config", "core.hooksPath", "src/tools/h")
    (base / "repo/src").mkdir()
    return base / "repo/src", "."


def settings_of_the_user(base: Path) -> tuple[Path, str]:
    (base / "home/.gitconfig").write_text("[core]\n\thooksPath = tools/h\n")
    return base / "repo", "."


def include_of_the_user(base: Path) -> tuple[Path, str]:
    (base / "home/.gitconfig").write_text("[include]\n\tpath = ~/more\n")
    (base / "home/more").write_text("[core]\n\thooksPath = tools/h\n")
    return base / "repo", "."


def through_a_link(base: Path) -> tuple[Path, str]:
    (base / "repo/real").mkdir()
    (base / "repo/tools").symlink_to("real")
    git(base / "repo", "config", "core.hooksPath", "tools/h")
    return base / "repo", "."


def git_directory_apart(base: Path) -> tuple[Path, str]:
    git(base / "repo", "init", "-q", "--separate-git-dir", "../apart.git")
    git(base / "repo", "config", "core.hooksPath", "tools/h")
    return base / "repo", "."


def bare_repository_with_a_tree(base: Path) -> tuple[Path, str]:
    # As for dotfiles: no `.git` leads from the tree to the settings.
    (base / "ws/tree").mkdir(parents=True)
    git(base / "ws", "clone", "-q", "--bare", "../repo", "store")
    git(base / "ws/store", "config", "core.bare", "false")
    git(base / "ws/store", "config", "core.worktree", "../tree")
    git(base / "ws/store", "config", "core.hooksPath", "tools/h")
    return base / "ws", "tree"


CASES = [
    submodule,
    linked_worktree_inside,
    linked_worktree_is_the_workspace,
    worktree_with_settings_of_its_own,
    folder_of_a_repository,
    settings_of_the_user,
    include_of_the_user,
    through_a_link,
    git_directory_apart,
    bare_repository_with_a_tree,
]


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_hooks_that_git_would_run_are_read_only_wherever_the_setting_lies(case, base: Path):
    root, worktree = case(base)
    hook = root / worktree / "tools/h/pre-commit"
    with FileTree.open(root) as tree:
        # Before there is a hook its place is known already.
        found = scan(tree, load(), max_entries=10_000)
        places = indirect_paths(tree, found)
        hook.parent.mkdir(parents=True)
        hook.write_text(f"#!/bin/sh\ntouch {base}/canary\n")
        hook.chmod(0o755)
        found = scan(tree, load(), max_entries=10_000)
    cwd = "store" if case is bare_repository_with_a_tree else worktree
    git(root / cwd, "commit", "-q", "--allow-empty", "-m", "two")
    assert (base / "canary").exists()  # the control: git runs it
    place = str(hook.parent.resolve().relative_to(root.resolve()))
    assert places.get(place) is True
    assert place in {item.path for item in found}


@pytest.mark.requirement("FS-8")
def test_a_bare_word_of_a_users_alias_makes_no_folder_read_only(base: Path):
    (base / "home/.gitconfig").write_text("[alias]\n\tt = !npm test\n\tx = !./tools/x\n")
    (base / "repo/test").mkdir()
    with FileTree.open(base / "repo") as tree:
        found = scan(tree, load(), max_entries=1000)
        assert set(indirect_paths(tree, found)) == {"tools/x"}


@pytest.mark.requirement("FS-8", "SKL-1")
@pytest.mark.parametrize(
    ("links", "kept", "obeyed"),
    [
        ({"GEMINI.md": "docs/rules.txt"}, True, {"docs/rules.txt"}),
        ({"GEMINI.md": "docs/none.txt"}, True, {"docs/none.txt"}),
        ({"sub/GEMINI.md": "../docs/rules.txt"}, True, {"docs/rules.txt"}),
        ({"GEMINI.md": "/etc/hostname"}, True, set()),
        (
            {"GEMINI.md": "docs/link", "docs/link": "rules.txt"},
            False,
            {"docs/link", "docs/rules.txt"},
        ),
        ({"GEMINI.md": "d/rules.txt", "d": "docs"}, False, {"d/rules.txt", "docs/rules.txt"}),
        (
            {".github/copilot-instructions.md": "../docs/rules.txt"},
            True,
            {"docs/rules.txt"},
        ),
    ],
)
def test_what_a_link_to_instructions_leads_to_is_obeyed(base: Path, links, kept, obeyed):
    root = base / "repo"
    for name in ("docs", "sub", ".github"):
        (root / name).mkdir()
    (root / "docs/rules.txt").write_text("Be careful.\n")
    for name, target in links.items():
        (root / name).symlink_to(target)
    with FileTree.open(root) as tree:
        found = scan(tree, load(), max_entries=1000)
        assert instruction_targets(tree, found) == obeyed
    first = next(iter(links))
    # Without a target, a read-write run is refused: code could replace the link on the way.
    assert [item.target for item in found if item.path == first] == [links[first] if kept else ""]


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    ("place", "is_hooks"), [("tools/h", True), ("tools/h/deep", True), ("tools", False)]
)
def test_a_workspace_within_the_hooks_of_a_repository_is_known(
    base: Path, place: str, is_hooks: bool
):
    git(base / "repo", "config", "core.hooksPath", "tools/h")
    (base / "repo" / place).mkdir(parents=True)
    with FileTree.open(base / "repo" / place) as tree:
        assert is_within_hooks(tree) is is_hooks
