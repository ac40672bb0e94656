"""A search, or a listing, that can find a denied file hands its names to no reader."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from unit.policy.policies import policy

pytestmark = pytest.mark.requirement("POL-12")

HOME, CWD = "/home/ann", "/home/ann/app"
EVERYTHING = policy(allow=["Bash(*)", "Read(//**)", "Write(//**)"])
NARROW = policy(
    allow=[
        f"Bash({each} *)"
        for each in ("ls", "cat", "xargs", "find", "fd", "rg", "git", "head", "grep")
    ]
)

LEADING = [
    "ls -A | xargs cat",
    "ls -la | xargs cat",
    "ls --almost | xargs cat",
    "cat $(ls -a)",
    "for f in $(ls -a); do cat $f; done",
    "ls -a | while read -r f; do cat $f; done",
    "ls -a ~ | xargs -I{} cat ~/{}",
    "ls .. | xargs -I{} cat ../{}/id_rsa",
    "ls -d ../.* | xargs -I{} cat {}/id_rsa",
    "ls | xargs -I{} cat .{}",
    "ls | xargs -I% cat ../.%",
    "rg --files --hidden | xargs cat",
    "rg --files -uu | xargs cat",
    "fd -H | xargs cat",
    "fd -e json . ~ -x cat",
    "git ls-files -o | xargs cat",
    "git ls-files --others --ignored | xargs cat",
]
LEADING += [
    "find . -regex './.e.*' -exec head {} +",
    "find . -regex '.*/\\(\\.env\\|x\\)' -exec head {} +",
    "find . -regex '(' -exec head {} +",
    "grep -r x --include=.env .",
    "grep -rh '' --include='.e*' .",
    "grep -R '' . --include '*nv'",
    "cat $X/../.netrc",
    "cat $(git rev-parse --show-toplevel)/../.netrc",
]
ORDINARY = [
    "find . -regex './src/a' -exec head {} +",
    "grep -r x --include='*.json' .",
    "grep -r x --include='*' .",
    "cat $X/README.md",
    "ls | xargs cat",
    "ls src/*.txt | head -3 | xargs cat",
    "cat $(ls *.txt | head -1)",
    "ls | xargs -I{} cat src/{}",
    "ls -la | head",
    "rg --files | xargs cat",
    "fd -e py -x cat",
    "git ls-files | xargs cat",
    "git ls-files -o --exclude-standard | xargs cat",
    "find . -name '*.py' | xargs cat",
]


@pytest.mark.parametrize("made", [EVERYTHING, NARROW], ids=["everything", "narrow"])
@pytest.mark.parametrize("command", LEADING)
def test_what_may_find_a_denied_file_is_not_allowed(made, command: str):
    call = {"tool": "Bash", "input": {"command": command}}
    assert made.check(call, cwd=CWD, home=HOME).verdict is not Verdict.ALLOW


@pytest.mark.parametrize("made", [EVERYTHING, NARROW], ids=["everything", "narrow"])
@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_listings_are_allowed(made, command: str):
    call = {"tool": "Bash", "input": {"command": command}}
    assert made.check(call, cwd=CWD, home=HOME).verdict is Verdict.ALLOW
