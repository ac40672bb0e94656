"""Names that one command hands to another are found, or they are data that nobody has judged."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.reader import read_shell
from cellwall.policy.found_names import are_found

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
