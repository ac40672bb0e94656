"""Names that one command hands to another are found, or they are data that nobody has judged."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.reader import read_shell
from cellwall.policy.found_names import are_found
from unit.policy.policies import policy

FOUND = [
    "cat $(git ls-files)",
    "cat $(git diff --name-only main | grep py)",
    "cat $(find . -name '*.py')",
    "grep -rl x src | xargs sed -n 1p",
    "grep -rl x src | head -3 | xargs cat",
    "rg --files | sort | xargs wc -l",
    "find . -print0 | xargs -0 grep -l x | xargs cat",
    'ls *.txt | while read -r f; do cat "$f"; done',
    'while read -r f; do cat "$f"; done < <(git ls-files)',
    "find . -print0 | du --files0-from=-",
    "cat $(which ls)",
    "find . -name '*.php' | xargs cat | wc -l",
    "find . -exec wc -l {} + | tail -n 1",
    "find . -type f -exec grep -Iq . {} ';' -print0 | xargs -0 grep x",
    "find . -name a | xargs -n 1 dirname | xargs ls",
    "read pid < $file",
    "cat a | sort | uniq",
    "cat $(command -v ls)",
    "git status --short | cut -c4- | xargs cat",
    "LC_ALL=C ls | xargs -d '\\n' cat",
    "find . -print0 | while IFS= read -r -d '' f; do cat \"$f\"; done",
    "ls | tail -n 2 | grep -v x | xargs cat",
]
DATA = [
    "cat $(<list)",
    "xargs cat < list",
    "xargs -a list cat",
    "xargs cat",
    'read f < list; cat "$f"',
    'read -u 3 f; cat "$f"',
    'while read f; do cat "$f"; done < list',
    'exec < list; ls | read x; cat "$x"',
    'mapfile -t a < list; cat "${a[@]}"',
    'read f <<< "x"; cat "$f"',
    "cat $(cat list)",
    "cat $(head -1 list)",
    "cat $(head -1 < list)",
    "cat $(grep x list)",
    "cat $(grep -rn x .)",
    "cat $(git diff)",
    "cat $(command printf x)",
    "cat $(find . -exec printf x ';')",
    "cat $(find . -printf x)",
    "ls | xargs printf x | xargs cat",
    "ls | xargs cat | xargs cat",
    "parallel cat :::: list",
    "cat $(basename .envx x)",
    "cat $(readlink link)",
    "ls | xargs echo .env | xargs cat",
    'f() { read x; cat "$x"; }; cat list | f',
    'cat list | { read x; cat "$x"; }',
    '{ read x; cat "$x"; } < <(cat list)',
    "cat list | tee >(xargs cat)",
    "cat list | tar -cf x -T -",
    "cat list | cpio -o",
    "find . -exec cat {} + | xargs cat",
    "cpio -o < list",
    "wc --files0-from=- < list",
    ". ./vars; cat $x",
    # Parts of names.
    "ls | cut -c2- | xargs cat",
    "ls | head -c 4 | xargs cat",
    "ls | tail --bytes=5 | xargs cat",
    "ls | grep -o 'e.v$' | xargs cat",
    "rg --files | rg x -r y | xargs cat",
    "ls | tac -s x | xargs cat",
    "ls | xargs -d x cat",
    "ls | xargs --delim=x cat",
    'ls | while IFS=x read -r a b; do cat "$b"; done',
    'ls | while read -rn4 a; do cat "$a"; done',
    'ls | while read -d x a; do cat "$a"; done',
    # Text that a lister is told to print.
    "cat -- $(ls -l --time-style=+x)",
    "TIME_STYLE=+x ls -l | xargs cat",
    "ls | grep -l --label=x . | xargs cat",
]


@pytest.mark.requirement("POL-12", "POL-14")
@pytest.mark.parametrize("text", FOUND)
def test_names_that_were_found_are_trusted(text: str):
    assert are_found(read_shell(text, directories=("/w",), home="/h"))


@pytest.mark.requirement("POL-12")
@pytest.mark.parametrize("text", DATA)
def test_names_out_of_data_are_not(text: str):
    assert not are_found(read_shell(text, directories=("/w",), home="/h"))


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
