"""A text for sh is refused where dash would run something else than bash."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import read_shell
from unit.policy.policies import policy, verdict

pytestmark = pytest.mark.requirement("POL-2", "POL-12")

DIFFERENT = [
    "echo $'\\'; id #'",
    "echo \"$(echo $'\\'; id #')\"",
    "echo a &> b id",
    "echo a &>> b id",
    "x+=./a echo b",
    "x[0]=./a; echo b",
    "x=(a); echo b",
    "declare x=a; cat $x.env",
    "typeset x=a; cat $x.env",
    "let x=1; echo $x",
    "y='b x=c'; export z=$y; echo $x",
    "f() { local z=$(cat a); }; f",
    "id() { :; }; time id",
]
ALIKE = ['x=a; export y="$x"; echo $y', "echo a > b 2>&1", "readonly x=a; echo $x", "time ls"]


@pytest.mark.parametrize("text", DIFFERENT)
def test_what_dash_reads_in_another_way_is_refused_for_sh_alone(text: str):
    here = {"directories": ("/w",), "home": "/h"}
    assert read_shell(text, **here)
    if not text.startswith("id()"):  # there dash starts the program that the function hides
        with pytest.raises(NotUnderstood, match="sh"):
            read_shell(text, **here, is_bash=False)
    else:
        assert not read_shell(text, **here, is_bash=False)[-1].is_function


@pytest.mark.parametrize("text", ALIKE)
def test_what_both_read_alike_is_read_alike(text: str):
    here = {"directories": ("/w",), "home": "/h"}
    known = [each.words[-1:] for each in read_shell(text, **here)]
    assert [each.words[-1:] for each in read_shell(text, **here, is_bash=False)] == known


def test_a_builtin_reads_text_as_the_shell_around_it_does():
    made = policy(allow=["Bash(*)", "Write(//**)"])
    for shell, expected in (("bash", "allow"), ("sh", "deny")):
        assert verdict(made, f"{shell} -c 'eval \"echo a &> b c\"'") == expected
        assert verdict(made, f"{shell} -c 'trap \"echo a &> b c\" EXIT'") == expected
    assert verdict(made, "sh -c 'bash -c \"echo a &> b c\"'") == "allow"
