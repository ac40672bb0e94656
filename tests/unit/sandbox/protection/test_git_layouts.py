"""Every file git reads code or paths from is found, whatever its directory is called (FS-8).

Each plant is proved with the real git: it runs the canary before the check, and does not after.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection.indirect_paths import indirect_paths
from cellwall.sandbox.protection.post_run_check import UNBOUNDED, Baseline, check_directory
from cellwall.sandbox.protection.protected_paths import scan

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words], cwd=cwd, env=ENV, capture_output=True, text=True, check=False
    )


class Plot:
    """A repository of the user's, code that plants in it, and a canary that git may run."""

    def __init__(self, base: Path) -> None:
        self.root, self.canary = base / "ws", base / "canary"
        self.quarantine = base / "quarantine"
        self.root.mkdir()
        git(self.root, "init", "-q", "-b", "main")
        self.write("a.txt", "1\n")
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "one")
        self.tree = FileTree.open(self.root)
        self.before, self.started_ns, self.paths = (), 0, {}

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    @property
    def evil(self) -> str:
        return (
            f'[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "touch {self.canary}; false"\n'
        )

    def bare(self, place: str, *, head: str = "HEAD") -> None:
        """A repository of files and directories alone, as code can write it."""
        for name in ("objects", "refs"):
            (self.root / place / name).mkdir(parents=True)
        self.write(f"{place}/{head}", "ref: refs/heads/main\n")
        self.write(f"{place}/config", self.evil + f"\tworktree = {self.root}\n")

    def begin(self) -> None:
        self.before = scan(self.tree, load(), max_entries=10_000)
        self.paths = indirect_paths(self.tree, self.before)
        probe = self.root.parent / "probe"
        probe.touch()
        first_ns = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == first_ns:
            probe.touch()
        self.started_ns = probe.stat().st_ctime_ns

    def settle(self) -> list[str]:
        return [
            finding.message
            for finding in check_directory(
                self.tree,
                Baseline(before=tuple(self.before), started_ns=self.started_ns),
                protection=load().with_paths(self.paths),
                limits=UNBOUNDED,
                quarantine_dir=self.quarantine,
            )
        ]

    def is_struck(self, cwd: str = ".", *, words: tuple[str, ...] = ("status",)) -> bool:
        self.canary.unlink(missing_ok=True)
        git(self.root / cwd, *words)
        return self.canary.exists()


@pytest.fixture
def plot(tmp_path: Path):
    made = Plot(tmp_path)
    with made.tree:
        yield made


def commondir(plot: Plot) -> str:
    plot.bare("x")
    plot.write(".git/commondir", "../x\n")
    return "."


def bare_layout(plot: Plot) -> str:
    plot.bare("docs/deep/er")
    return "docs/deep/er"


def bare_layout_head_link(plot: Plot) -> str:
    plot.bare("d")
    (plot.root / "d/HEAD").unlink()
    (plot.root / "d/HEAD").symlink_to("refs/heads/main")
    return "d"


def bare_layout_by_commondir(plot: Plot) -> str:
    plot.bare("store", head="no-head-is-needed")
    plot.write("store/config", plot.evil + "[extensions]\n\tworktreeConfig = true\n")
    plot.write("src/HEAD", "ref: refs/heads/main\n")
    plot.write("src/commondir", "../store\n")
    plot.write("src/config.worktree", f"[core]\n\tworktree = {plot.root}\n")
    return "src"


def bare_layout_made_by_git(plot: Plot) -> str:
    git(plot.root, "init", "-q", "--bare", "mirror")
    plot.write("mirror/config", plot.evil + f"\tbare = false\n\tworktree = {plot.root}\n")
    return "mirror"


def git_file(plot: Plot) -> str:
    plot.bare("x")
    (plot.root / "sub").mkdir()
    plot.write("sub/.git", "gitdir: ../x\n")
    return "sub"


def git_link(plot: Plot) -> str:
    plot.bare("x")
    (plot.root / "sub").mkdir()
    (plot.root / "sub/.git").symlink_to("../x")
    return "sub"


def nested_repository(plot: Plot) -> str:
    (plot.root / "a/b").mkdir(parents=True)
    git(plot.root / "a/b", "init", "-q")
    plot.write("a/b/.git/config", plot.evil)
    return "a/b"


def submodule(plot: Plot) -> str:
    plot.bare(".git/modules/lib/deep/name")
    plot.write("lib/.git", "gitdir: ../.git/modules/lib/deep/name\n")
    return "lib"


def worktree(plot: Plot) -> str:
    git(plot.root, "worktree", "add", "-q", "wt")
    plot.bare("x")
    plot.write(".git/worktrees/wt/commondir", "../../../x\n")
    return "wt"


def worktree_config(plot: Plot) -> str:
    # The user's own settings name the extension; code writes the file.
    plot.write(".git/config.worktree", plot.evil)
    return "."


def include(plot: Plot) -> str:
    plot.write("settings.inc", plot.evil)
    return "."


def hook(plot: Plot) -> str:
    plot.write(".git/hooks/post-index-change", f"#!/bin/sh\ntouch {plot.canary}\n", 0o755)
    plot.write("a.txt", "2\n")
    os.utime(plot.root / "a.txt", (1, 1))
    return "."


def hooks_path(plot: Plot) -> str:
    plot.write("tools/hooks/post-index-change", f"#!/bin/sh\ntouch {plot.canary}\n", 0o755)
    plot.write("a.txt", "1\n")
    os.utime(plot.root / "a.txt", (1, 1))
    return "."


def filter_program(plot: Plot) -> str:
    plot.write("tools/clean", f"#!/bin/sh\ntouch {plot.canary}\ncat\n", 0o755)
    plot.write("a.txt", "22\n")
    return "."


PREPARED = {
    worktree_config: ("config", "extensions.worktreeConfig", "true"),
    include: ("config", "include.path", "../settings.inc"),
    hooks_path: ("config", "core.hooksPath", "tools/hooks"),
    filter_program: ("config", "filter.x.clean", "tools/clean"),
}
PLANTS = [
    commondir,
    bare_layout,
    bare_layout_head_link,
    bare_layout_by_commondir,
    bare_layout_made_by_git,
    git_file,
    git_link,
    nested_repository,
    submodule,
    worktree,
    worktree_config,
    include,
    hook,
    hooks_path,
    filter_program,
]


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_makes_git_run_a_program_is_gone_after_the_check(plot: Plot, plant):
    if plant is hook:  # one that exists is mounted over during a run
        shutil.rmtree(plot.root / ".git/hooks")
    if plant in PREPARED:
        git(plot.root, *PREPARED[plant])
        if plant is filter_program:
            plot.write(".gitattributes", "*.txt filter=x\n")
    plot.begin()
    cwd = plant(plot)
    words = ("diff",) if plant is filter_program else ("status",)
    assert plot.is_struck(cwd, words=words)  # the control: git runs it
    if plant in {hook, hooks_path}:
        os.utime(plot.root / "a.txt", (2, 2))
    assert plot.settle() != []
    if (plot.root / cwd).exists():
        assert not plot.is_struck(cwd, words=words)
    assert git(plot.root, "log", "--oneline").stdout.endswith(" one\n")  # the user's own is whole


@pytest.mark.requirement("FS-8")
def test_the_workspace_itself_does_not_become_a_repository(tmp_path: Path):
    plot = Plot(tmp_path)
    shutil.rmtree(plot.root / ".git")
    plot.begin()
    plot.bare(".")
    assert plot.is_struck()
    assert [told for told in plot.settle() if told.startswith("'HEAD'")]
    assert not plot.is_struck()


@pytest.mark.requirement("FS-8")
def test_a_repository_built_over_two_runs_is_found_in_the_second(plot: Plot):
    plot.begin()
    plot.bare("x", head="not-yet")
    assert plot.settle() == []
    plot.begin()
    (plot.root / "x/not-yet").rename(plot.root / "x/HEAD")
    assert plot.is_struck("x")
    assert len(plot.settle()) == 1
    assert not plot.is_struck("x")
    assert (plot.root / "x/config").exists()  # for all we know the user's own file


@pytest.mark.requirement("FS-8")
def test_a_submodule_built_over_two_runs_is_found_in_the_second(plot: Plot):
    plot.begin()
    plot.bare(".git/modules/deep/x", head="not-yet")
    plot.settle()
    plot.begin()
    (plot.root / ".git/modules/deep/x/not-yet").rename(plot.root / ".git/modules/deep/x/HEAD")
    assert [told for told in plot.settle() if "modules/deep/x/config" in told]


@pytest.mark.requirement("FS-8")
def test_half_a_worktree_does_not_make_git_write_elsewhere(plot: Plot):
    # Without a HEAD it is no git directory, and yet git obeys the file.
    victim = plot.root.parent / "victim"
    victim.mkdir()
    plot.begin()
    for name in ("worktrees/w/gitdir", "worktrees/w/config.worktree", "modules/m/config"):
        plot.write(f".git/{name}", f"{victim}/.git\n")
    git(plot.root, "worktree", "repair")
    assert (victim / ".git").exists()  # the control
    (victim / ".git").unlink()
    assert len(plot.settle()) == 3
    git(plot.root, "worktree", "repair")
    assert not (victim / ".git").exists()


@pytest.mark.slow
@pytest.mark.requirement("FS-8")
def test_ordinary_work_with_git_is_left_alone(plot: Plot):
    git(plot.root, "init", "-q", "--bare", "fixtures/repo")
    git(plot.root, "push", "-q", "fixtures/repo", "main")
    plot.begin()
    for name in ("config", "hooks", "feature/config", "commondir", "objects/x", "refs/y"):
        assert git(plot.root, "checkout", "-qb", name).returncode == 0
        git(plot.root, "commit", "-q", "--allow-empty", "-m", name)
    git(plot.root, "push", "-q", "fixtures/repo", "hooks:new", "main")
    git(plot.root, "tag", "head")
    git(plot.root, "stash")
    git(plot.root, "gc", "-q")
    for name in ("src/head", "src/objects/x.py", "refs/readme", "config/app.yml", "src/config"):
        plot.write(name, "x")
    assert plot.settle() == []
    assert git(plot.root, "status", "-s").returncode == 0


@pytest.mark.requirement("FS-8")
def test_existing_git_directories_of_any_name_are_covered(plot: Plot):
    git(plot.root, "init", "-q", "--bare", "fixtures/repo")
    git(plot.root, "config", "core.hooksPath", "tools/hooks")
    git(plot.root, "config", "alias.x", "!sh ./tools/x.sh")
    plot.write("tools/x.sh", "")
    plot.write("tools/hooks/pre-commit", "")
    found = {item.path for item in scan(plot.tree, load(), max_entries=1000)}
    assert {
        ".git/config",
        ".git/hooks",
        "fixtures/repo/config",
        "fixtures/repo/hooks",
        "fixtures/repo/HEAD",
        "tools/hooks",
        "tools/x.sh",
    } <= found
    assert not {".git/HEAD", ".git/index", "fixtures/repo/refs"} & found
