"""A patch in a command names the files that it writes: they are judged like any others."""

from __future__ import annotations

import pytest

from unit.policy.policies import policy, verdict

EVERYTHING = policy(allow=["Bash(*)", "Read(./**)", "Edit(./**)"])


def patch(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\n"


def diff(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


WAYS = [
    lambda path: f"apply_patch <<'E'\n{patch(path)}E\n",
    lambda path: f"apply_patch '{patch(path)}'",
    lambda path: f"cd . && applypatch <<'E'\n{patch(path)}E\n",
    lambda path: f"patch -p1 <<'E'\n{diff(path)}E\n",
    lambda path: f"patch <<'E'\n{diff(path)}E\n",
    lambda path: f"patch -p0 <<< '+++ {path}'",
    lambda path: f"echo '+++ {path}' | patch -p0",
    lambda path: f"git apply <<'E'\n{diff(path)}E\n",
    lambda path: f"git -C . apply --index <<'E'\n{diff(path)}E\n",
    lambda path: f"git apply <<'E'\ndiff --git a/x b/{path}\nrename from x\nrename to {path}\nE\n",
    lambda path: f"cat > x.diff <<'E'\n{diff(path)}E\npatch -p1 < x.diff",
    lambda path: f"cat > x.diff <<'E'\n{diff(path)}E\ngit apply x.diff",
]


@pytest.mark.requirement("POL-2", "POL-4", "FS-8")
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_file_that_a_patch_names_is_judged(way: int):
    for path in (".env", ".git/hooks/pre-commit"):
        assert (path, verdict(EVERYTHING, WAYS[way](path))) == (path, "deny")
    assert verdict(EVERYTHING, WAYS[way]("src/a.py")) == "allow"


@pytest.mark.requirement("POL-2", "POL-4")
@pytest.mark.parametrize(
    "command",
    [
        "patch -p1 -d/home/ann <<'E'\n+++ b/.bashrc\nE\n",
        "patch -p1 --directory=/home/ann <<'E'\n+++ b/.bashrc\nE\n",
        f"apply_patch <<'E'\n{patch('/home/ann/.bashrc')}E\n",
        f"apply_patch <<'E'\n{patch('../../home/bob/x')}E\n",
    ],
)
def test_a_patch_elsewhere_is_not_allowed(command: str):
    assert verdict(EVERYTHING, command) != "allow"


@pytest.mark.parametrize("command", ["patch -p1 < x.diff", "git apply x.diff", "git am x.mbox"])
def test_a_patch_of_a_file_that_is_there_is_the_file_s_matter(command: str):
    assert verdict(EVERYTHING, command) == "allow"
