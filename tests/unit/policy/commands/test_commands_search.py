"""Programs that look for files: what they start for those is found."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
grep -rn "foo" src
grep -e foo -f pats file
rg -n --type py 'def main' src
rg -C3 foo
find . -name '*.py'
find src -type f -name '*.ts' -not -path '*/node_modules/*'
find . -maxdepth 2 -type d
find . ( -name a -o -name b ) -print
find . -newer x -mtime -1 -size +1M
find . -regextype posix-extended -regex '.*'
fd -e py foo src
grep foo @u
find . -name x -print0
find . -printf '%p %s'
find . -ls
"""

FOUND = r"""
find . -exec cat .e{}nv ; -> inner cat .e…nv
find secrets -type f -execdir cat key ; -> inner cat secrets/…/key
find src -execdir cat --files0-from=key ; -> inner cat --files0-from=src/…/key
find src -execdir cat ../../.aws/credentials ; -> danger | inner cat src/…/../../.aws/credentials
find src -execdir grep -f.env x ; -> danger | inner grep -f.env src/…/x
find . -exec rm {} ; -> inner rm ./…
find . -exec rm {} + -> inner rm ./… ./…
find . -ok rm {} ; -> inner rm ./…
find . -execdir rm {} ; -> inner rm ./…
find . -okdir sh -c 'rm {}' ; -> inner sh -c ./…/rm ./…
find . -delete -> inner rm -rf .
find / -name '*' -delete -> inner rm -rf /
find . -fprint /etc/x -> danger -fprint | write /etc/x
find . -fprint0 x -> danger -fprint0 | write x
find . -fprintf /etc/x %p -> danger -fprintf | write /etc/x
find . -fprintf x %p -delete -> danger -fprintf | inner rm -rf . | write x
find . -fls x -> danger -fls | write x
find . -foo -> danger -foo
find @u -name x -> danger
find -- . -exec rm {} ; -> inner rm ./…
find -files0-from x -delete -> inner rm -rf … | read x | read …
fd -x rm -> inner rm ./…
fd -X rm {} ; -> inner rm ./…
fd --exec rm -> inner rm ./…
rg --pre ./x y -> open ./x
rg --pre=./x y -> open ./x
ag --pager rm x -> script rm
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


def test_files_of_one_place_are_known_to_lie_in_it():
    assert told("find src -name x -exec rm -f {} ;") == ["inner rm -f src/…"]
    assert told("find src test -exec rm {} ;") == ["inner rm src/…", "inner rm test/…"]
    assert told("find src -execdir rm {} ;") == ["inner rm src/…"]


def test_a_deletion_that_something_narrows_is_one_of_files():
    assert told("find src -name '*.pyc' -delete") == ["inner rm -f src/…"]
    assert told("find src -type f -delete") == ["inner rm -rf src"]
    assert told("find ~ -name '*.pyc' -delete") == ["inner rm -rf ~"]


def test_several_actions_are_all_seen():
    found = told("find . -exec cp {} /x ; -exec rm {} + -fprint log")
    assert found == ["danger -fprint", "inner cp ./… /x", "inner rm ./… ./…", "write log"]


def test_fd_takes_options_behind_the_end_of_a_command():
    assert told("fd x -x rm {} ; -x mv {} y") == ["inner rm ./…", "inner mv ./… y"]
    assert told("fd x src -x rm") == ["inner rm src/…"]
    assert "danger" in told("fd " + "-x rm ; " * 50)


def test_too_many_start_paths_are_one_that_is_not_known():
    many = " ".join(f"p{n}" for n in range(20))
    assert told(f"find {many} -exec rm {{}} ;") == ["inner rm …"]
