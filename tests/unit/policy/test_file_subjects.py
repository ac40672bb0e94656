"""Wildcards that were expanded before: the path made of them may be that of a new file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.policy.calls import ToolCall
from unit.policy.policies import policy

ANYTHING = policy(["Bash(*)"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in (".git/hooks", ".vscode", "src", "docs", "bare/refs", "bare/objects", "pip"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (".git/HEAD", "bare/HEAD", "a.txt", "b.txt", "commondir", "LICENSE"):
        (tmp_path / file).touch()
    return tmp_path


def verdict(command: str, project: Path) -> str:
    call = ToolCall("Bash", {"command": command}, str(project), "/home/ann")
    return ANYTHING.check(call).verdict.word


@pytest.mark.parametrize(
    "command",
    [
        "cd .git/h*; echo x > pre-commit",
        "cd .g*/hooks && tee pre-commit",
        "cd .g* && cd ho* && cp a.txt pre-commit",
        "pushd .git/h*; tee pre-commit",
        "env -C .git/h* tee pre-commit",
        'for d in .git/h*; do echo x > "$d/pre-commit"; done',
        'for d in .git/h*; do cp a.txt "$d"/pre-commit; done',
        'for d in .git/*; do cp a.txt "$d"/pre-commit; done',
        'for d in .gi*; do cp a.txt "${d}config"; done',
        'for d in pi*; do cp a.txt "${d}.conf"; done',
        'for d in .vs*; do cp a.txt "$d/tasks.json"; done',
        'for f in common*; do cp "$f" ".git/$f"; done',
        'for d in *; do echo x > "$d/config"; done',
        "cp commondir .gi*",
        "cp -t .gi* commondir",
        "cp common* .git/",
        "mv common* .git",
        "ln -s common* .git",
        "install commondir .gi*",
    ],
)
def test_a_new_protected_name_is_denied_where_wildcards_found_its_folder_or_a_part(
    command, project
):
    assert verdict(command, project) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "cd s* && touch a.py",
        'for f in *; do cp "$f" "/tmp/out/$f"; done',
        'for f in *.txt; do cp "$f" "$f.bak"; done',
        'for f in *.txt; do mv "$f" "docs/$f"; done',
        'for d in s* d*; do cp LICENSE "$d/"; done',
        'for d in src*; do echo {} > "$d/tsconfig.json"; done',
        "cp *.txt docs/",
        "cp a.txt d*/",
    ],
)
def test_ordinary_names_are_joined_freely(command, project):
    assert verdict(command, project) == "allow"
