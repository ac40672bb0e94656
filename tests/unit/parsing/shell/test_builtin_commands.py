"""Where a text is, however it gets there; a folder that is left out could hold a secret."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.reader import read_shell
from cellwall.parsing.shell.words import UNKNOWN

pytestmark = pytest.mark.requirement("POL-2", "POL-12")


def places(text: str) -> tuple[str, ...]:
    return read_shell(text, directories=("/w/app",), home="/home/ann")[-1].directories


@pytest.mark.parametrize(
    "text",
    [
        "cd ..; a",
        "command -p cd ..; a",
        "command -- cd ..; a",
        "builtin -- cd ..; a",
        "command builtin cd ..; a",
        "cd -L -- ..; a",
        'eval "c\\d .."; a',
        "eval 'builtin c\"\"d ..'; a",
        "eval pushd ..; a",
        "eval 'eval \"cd ..\"'; a",
        "trap 'cd ..' DEBUG; a",
        "true | cd ..; a",  # zsh runs the last command of a pipe in the shell itself
    ],
)
def test_cd_is_followed_by_whatever_name(text: str):
    assert "/w" in places(text)


@pytest.mark.parametrize(
    "text",
    [
        'cd "$x/.."; a',
        "cd ~+/..; a",
        "cd src/$x/../..; a",
        'cd "$x"; cd ..; a',
        "pushd +1; a",
        "cd -2; a",
        "eval popd; a",
        "cd app other; a",  # zsh puts the one in the place of the other
    ],
)
def test_the_folder_above_an_unknown_one_is_unknown(text: str):
    assert any(each.startswith(UNKNOWN) for each in places(text))


def test_a_physical_cd_leads_through_links():
    assert places("cd -P src/..; a") == ("/w/app", "/w/app/src/..")
    assert places("cd src/..; a") == ("/w/app",)


def test_a_file_of_the_workspace_may_lead_home():
    assert places(". ./x; a") == ("/w/app", "/home/ann")
    assert places(". .venv/bin/activate; a") == ("/w/app",)


def test_a_text_that_stays_where_it_is_is_in_one_place():
    assert places("eval 'echo x'; (cd ..); true | cat; a") == ("/w/app",)
