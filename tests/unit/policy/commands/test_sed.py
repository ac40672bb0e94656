"""sed scripts: commands that run, read and write are told from text."""

from __future__ import annotations

import pytest

from cellwall.policy.commands.sed import is_closed
from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
sed -n 1,20p f
sed -i 's/a/b/g' f
sed 's/a/b/; s/c/d/' f
sed -E 's/(a|b)+/x/g' f
sed -e 's/a/b/' -e 's/c/d/' f
sed '/^$/d' f
sed -i.bak 's|/a|/b|' f
sed -n '/start/,/end/p' f
sed '1d;$d' f
sed '/x/a new line' f
"""

FOUND = r"""
sed '1e rm x' f -> read f | script rm x
sed 's/x/y/e' f -> danger | read f
sed 's/x/y/ge' f -> danger | read f
sed -n '/x/e rm' f -> read f | script rm
sed 'w /etc/x' f -> read f | write /etc/x
sed 's/a/b/w /etc/x' f -> read f | write /etc/x
sed 'r /etc/passwd' f -> read /etc/passwd | read f
sed -e p --expression '1e rm' f -> read f | script rm
sed -e p --expr '1e rm' f -> read f | script rm
sed -e p --expr='1e rm' f -> read f | script rm
sed --expression='1e rm' f -> read f | script rm
sed 's/a/@u/' f -> danger | read f
sed -f s.sed f -> danger -f | read f | read s.sed
sed -nf s.sed f -> danger -nf | read f | read s.sed
sed --fil=s.sed f -> danger --fil | read f | read s.sed
sed -f - f -> danger -f | read f | stdin sed
sed p f -e '1e rm' -> read f | read p | script rm
sed 's,x,y,;e rm' f -> read f | script rm
sed ':a;e rm' f -> read f | script rm
sed 'y/abc/def/;1e rm' f -> read f | script rm
sed -i 's/a/b/' /etc/passwd -> read /etc/passwd | write /etc/passwd
sed -ni p f -> read f | write f
sed --in-place=.bak p f g -> read f | read g | write f | write g
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("{e rm\n}", ["script rm"]),
        ("a\\\ntext\ne rm", ["script rm"]),
        (":a e rm", ["script rm"]),
        ("s/a/b/ e", ["danger"]),
        ("s/a/b/w f\ne rm", ["script rm", "write f"]),
        ("\\,x,e rm", ["script rm"]),
        ("0~3,/x/I!{s|a|b|gw out\n}", ["write out"]),
        ("s/[\\]/x/e;s/]/y/", ["danger"]),
        ("s/[/]/x/", []),
        ("s/[^/]*$//;/[^/]x/d", []),
        ("s/[/]/x/e", ["danger"]),
        ("s/[/]/x/;w out", ["write out"]),
        ("s/[" + "/" * 20 + "]/x/", ["danger"]),
        ("k", ["danger"]),
        ("s/a/b", ["danger"]),
        ("y/ab/cd/\nR f", ["read f"]),
    ],
)
def test_every_command_of_a_script_is_seen(script: str, found: list[str]):
    assert sorted(told(f"sed '{script}'")) == sorted(found)


@pytest.mark.parametrize(
    "script",
    [
        "s/e/w/;s/w/e/g",
        "/e /d",
        "a e rm",
        "i\\\ne rm",
        "s/x/\\ne rm/",
        "y/e/w/",
        "# e rm",
        "s,[e],w,2p",
        "b end\n:end",
    ],
)
def test_letters_in_text_are_no_commands(script: str):
    assert told(f"sed '{script}'") == []


def test_a_sandboxed_sed_runs_and_writes_nothing():
    assert told("sed --sandbox '1e rm\nw f'") == []


def test_the_name_of_a_copy_stays_in_the_folder():
    assert told("sed -i.bak p f") == ["read f", "write f"]
    assert "danger -i" in told("sed -i'/etc/@g*' p f")


def test_all_expressions_are_one_script():
    assert told("sed -e 'a\\' -e 'e rm' f") == ["read f"]


@pytest.mark.parametrize(
    "pattern", ["", "abc", "[abc]", "[^abc]x[d]", "[[:alpha:]_]", r"[\/]", r"\[x", r"[a\n]"]
)
def test_closed_by_every_reading(pattern: str):
    assert is_closed(pattern)


@pytest.mark.parametrize("pattern", ["[", "[^", "[]", "[[:alpha:]", r"[\]", "[a", "x[", "[[.]"])
def test_open_by_some_reading(pattern: str):
    assert not is_closed(pattern)
