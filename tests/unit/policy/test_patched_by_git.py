"""A patch that stands in the text is a write of each file it names."""

from __future__ import annotations

import pytest

from unit.policy.policies import policy, verdict

pytestmark = pytest.mark.requirement("POL-2", "FS-8")

EVERYTHING = policy(["Bash(*)", "Read(//**)", "Write(//**)"])
BOUNDED = policy(["Bash(patch *)", "Bash(git apply *)", "Read(./**)", "Edit(./src/**)"])


def _patch(command: str, name: str) -> str:
    return f"{command} <<'EOF'\n--- {name}\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\nEOF"


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("patch -p1", "b/.git/config"),
        ("patch -p 1", "b/.git/config"),
        ("patch --strip=2", "a/b/.git/config"),
        ("patch", "a/b/.git/hooks/pre-commit"),
        ("patch -p0", ".bashrc"),
        ("patch -p0 -d .git", "config"),
        ("patch -p0 --directory=.git", "config"),
        ("git apply", "b/.git/config"),
        ("git apply -p0", ".git/config"),
        ("git -C . apply -p2", "x/y/.bashrc"),
        ("git am", "b/.bashrc"),
    ],
)
def test_a_protected_file_in_a_patch_is_not_written(command: str, name: str):
    assert verdict(EVERYTHING, _patch(command, name)) == "deny"
    assert verdict(EVERYTHING, _patch(command.replace(".git", "src"), "b/x/c.py")) == "allow"


def test_a_renamed_file_and_a_patch_that_the_text_writes_count():
    rename = "rename from a\nrename to .git/hooks/pre-commit\n"
    assert verdict(EVERYTHING, f"git apply <<'EOF'\n{rename}EOF") == "deny"
    write = f"cat > x.diff <<'EOF'\n{rename}EOF\n"
    assert verdict(EVERYTHING, f"{write}git apply x.diff") == "deny"
    assert verdict(EVERYTHING, f"{write}patch < x.diff") == "deny"


def test_rules_for_writing_hold_for_what_a_patch_names():
    assert verdict(BOUNDED, _patch("patch -p1", "a/src/a.py")) == "allow"
    assert verdict(BOUNDED, _patch("git apply", "b/src/a.py")) == "allow"
    assert verdict(BOUNDED, _patch("patch -p1", "a/other/a.py")) == "deny"
    assert verdict(BOUNDED, _patch("patch -p0", "/etc/x")) == "deny"
