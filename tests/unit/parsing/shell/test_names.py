"""Definitions and values count only where the shell surely reaches them."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.names import can_be_function
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import read_shell


def last_of(text, **options):
    return read_shell(text, directories=("/work",), home="/home/dev", **options)[-1]


@pytest.mark.parametrize(
    ("text", "is_function"),
    [
        ("f() { echo; }; f", True),
        ("f() { echo; }; unset x; f", True),
        ("f() { echo; }; unset -v f; f", True),
        ("f() { echo; }; unset f; f", False),
        ("{ f() { echo; }; }; f", True),
        ("{ f() { echo; }; } 2>&9; f", False),
        ("if a; then b; elif f() { echo; }; then c; fi; f", False),
        ("echo $((1)); f() { echo; }; f", True),
        ("echo $((1)); f() { echo; }\nf", False),
        ("echo $((1)); \\\nf() { echo; }\nf", False),
        ("echo $((1))\nf() { echo; }\nf", True),
    ],
)
def test_a_function_is_called_only_where_its_definition_holds(text, is_function):
    assert last_of(text).is_function is is_function


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("x=q; cat a$x", True),
        ("x=q <&9; cat a$x", False),
        ("export x=q; cat a$x", True),
        ("export x=q <&9; cat a$x", False),
        ("local x=q; cat a$x", False),
        ("f() { local x=q; cat a$x; }", True),
        ("x=q; b & wait $!; cat a$x", True),
        ("x=q; b & p=$!; wait $p; cat a$x", True),
        ("x=q; wait -p x; cat a$x", False),
        ("x=q; wait $o; cat a$x", False),
        ("FUNCNAME=q; cat a$FUNCNAME", False),
    ],
)
def test_a_value_is_known_only_where_the_assignment_surely_happened(text, is_known):
    assert (last_of(text).words[-1].text == "aq") is is_known


def test_the_word_function_is_refused_where_sh_reads_the_text():
    assert last_of("function f { echo; }; f").is_function
    with pytest.raises(NotUnderstood):
        last_of("function f { echo; }; f", is_bash=False)
    with pytest.raises(NotUnderstood):
        last_of("function f\n{ echo; }\nf")


def test_a_special_builtin_or_a_path_is_no_function():
    assert [can_be_function(each) for each in ("f", "exec", "/bin/id")] == [True, False, False]
