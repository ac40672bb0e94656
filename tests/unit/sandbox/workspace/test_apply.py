"""What `apply` does not take over, though its name is an ordinary one (FS-2, FS-8, SKL-1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.workspace.apply import apply

FAR_FUTURE_NS = 1 << 62
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY")


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def applied(lower: Path, upper: Path, *, instructions: bool = False) -> dict[str, str]:
    """Each path with why it was refused; "" if it was taken over."""
    with FileTree.open(lower) as below, FileTree.open(upper) as above:
        report = apply(below, above, load(), started_ns=FAR_FUTURE_NS, instructions=instructions)
    done = {change.path: "" for change in report.applied if change.entry_kind != "dir"}
    return done | dict(report.refused)


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("lower", "upper"):
        (tmp_path / name).mkdir()
    return tmp_path / "lower", tmp_path / "upper"


@pytest.mark.requirement("FS-2", "SKL-1")
@pytest.mark.parametrize("link", ["CLAUDE.md", "sub/AGENTS.md", ".github/copilot-instructions.md"])
def test_text_that_a_link_to_instructions_leads_to_is_taken_over_on_request(layers, link: str):
    lower, upper = layers
    write(lower, "docs/rules.txt", "Be careful.")
    (lower / link).parent.mkdir(exist_ok=True)
    (lower / link).symlink_to("../" * link.count("/") + "docs/rules.txt")
    write(upper, "docs/rules.txt", "evil")
    write(upper, "docs/other.txt", "fine")
    assert applied(lower, upper) == {
        "docs/rules.txt": "instructions for agents, taken over on request",
        "docs/other.txt": "",
    }
    assert applied(lower, upper, instructions=True)["docs/rules.txt"] == ""


@pytest.mark.requirement("FS-2", "FS-8")
@pytest.mark.parametrize("tree", ["", "sub", "trees/w"])
def test_hooks_of_every_working_tree_are_refused(layers, tree: str, tmp_path: Path):
    lower, upper = layers

    def git(*words: str, cwd: Path = lower) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
        subprocess.run(command, cwd=cwd, capture_output=True, check=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    if tree == "sub":
        git("-c", "protocol.file.allow=always", "submodule", "add", str(lower), "sub")
    elif tree:
        git("worktree", "add", "-q", tree)
    git("config", "core.hooksPath", "tools/h", cwd=lower / tree)
    hook = str(Path(tree) / "tools/h/pre-commit")
    write(upper, hook, "evil")
    write(upper, "tools/other", "fine")
    told = applied(lower, upper)
    assert (told[hook], told["tools/other"]) == ("protected name (read-only)", "")


@pytest.mark.requirement("FS-2", "FS-4")
def test_certificates_are_taken_over_and_keys_are_not(layers):
    lower, upper = layers
    write(lower, "old.pem", CERTIFICATE)
    write(lower, "key.pem", KEY)
    for name in ("old.pem", "new.pem", "key.pem"):
        write(upper, name, CERTIFICATE * 2)
    write(upper, "plant.pem", CERTIFICATE + KEY)
    refused = "protected name (hide)"
    assert applied(lower, upper) == {
        "old.pem": "",
        "new.pem": "",
        "key.pem": refused,
        "plant.pem": refused,
    }
