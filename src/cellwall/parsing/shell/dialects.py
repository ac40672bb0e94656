"""What zsh runs in another way than bash. Pure.

The judged language is bash's, and sh's as far as bash and dash read a text alike. An agent's host
may hand the text to the person's own shell, which on many machines is zsh. So a form that zsh
expands to something else, or runs as code, is refused although it is harmless in bash. Aliases,
options and functions that a person's own start-up files define cannot be seen here.

    *(…)  +(…)  ?(…)   extended globs in bash; in zsh `*(e:'id':)` runs code for each name
    =name              in zsh the path of that program
    ~[…]               in zsh the result of a function (see tildes.py)
    $~x  $=x  $^x  $+x in zsh expansions with another meaning; in bash a literal dollar sign
    $x[…]              in zsh a subscript, which can hold flags and arithmetic
    $x:h               in zsh a modifier that changes the value
    $#x                in zsh the length of x
    >! a               in zsh writes a; in bash the file `!`
    path=a             in zsh the same as PATH; functions[ls]=id gives ls another meaning
    < a                in zsh starts the program that READNULLCMD names
    <1-9>              in zsh a pattern for numbers; in bash two redirections
    exit 'x[$(id)]'    in zsh a sum that runs id, as the numbers of `printf %d` or `shift` are
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from cellwall.parsing.shell.braces import Mark
from cellwall.parsing.shell.parser import Node, NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Origin, Word

_FLAGS = frozenset("~=^+")
_is_name_sign = re.compile(r"[A-Za-z0-9_]").fullmatch
_is_number_glob = re.compile(r"[0-9]*-[0-9]*").fullmatch
_modifies = re.compile(r":[A-Za-z&]").match

# The parser hands the pattern on as text, and bash expands it: `[[ a == @($(id)) ]]` runs id.
is_plain_pattern = re.compile(r"[\w.,:/*?|-]*").fullmatch
_SEARCHED = frozenset(("path", "fpath", "cdpath", "module_path"))
_TABLES = frozenset(
    ("functions", "aliases", "galiases", "saliases", "commands", "options", "nameddirs")
)

_TAKING_NUMBERS = frozenset(
    ("exit", "return", "shift", "break", "continue", "logout", "bye", "test", "[", "read")
)
_WITH_WORDS = frozenset(("test", "[", "read"))
"""Most of their words are no numbers."""
_find_number_format = re.compile(
    r"%[^%a-zA-Z]*(?:[lhjztLq]*[diouxXeEfFgGaAn]|[^%a-zA-Z]*\*)"
).search
_MAY_RUN = frozenset("$`(")

EXTENDED_GLOB = "zsh runs code in patterns like *(…); name the files, or use find"


def check_word(marks: Sequence[Mark]) -> None:
    """A word of a command, once its braces are expanded; raises `NotUnderstood`."""
    if marks[:1] == ["="] and len(marks) > 1 and _is_sign(marks[1]):
        raise NotUnderstood("zsh takes =name for the path of a program; put it between quotes")
    for left, right in pairwise(marks):
        if left == "$" and right in _FLAGS:
            raise NotUnderstood(f"zsh expands ${right}; put the dollar sign between single quotes")


def _is_sign(mark: Mark) -> bool:
    return not isinstance(mark, str) or _is_name_sign(mark) is not None or mark in "/.~"


def check_assigned(name: str, *, is_element: bool) -> None:
    """`is_element`: a list, or one element, and not a text."""
    if name in _SEARCHED or (is_element and name.removeprefix("dis_") in _TABLES):
        raise NotUnderstood(f"in zsh the variable {name} decides what runs; take another name")


def check_target(operator: str, text: str) -> None:
    """The target of a redirection."""
    if operator == "<" and _is_number_glob(text):
        raise NotUnderstood("zsh takes <…-…> for a pattern; put ./ before the name of the file")
    if text.startswith("!") and operator != "<<<":
        raise NotUnderstood("zsh takes >! for an operator; put ./ before the name of the file")


def check_following(name: str, text: str, *, is_known: bool) -> None:
    """`$name`, and the text right behind it; `is_known`: the text itself gives it a value."""
    if text.startswith("["):
        raise NotUnderstood(f"zsh takes ${name}[…] for a subscript; write ${{{name}}}[…]")
    if name == "#" and _is_name_sign(text[:1]):
        raise NotUnderstood(f"zsh takes $#{text[:1]}… for a length; write ${{#}}{text[:1]}…")
    if is_known and _modifies(text):
        raise NotUnderstood(f"zsh changes the value in ${name}{text}…; write ${{{name}}}{text}…")


def is_short(part: Node) -> bool:
    """`$name`, without braces."""
    return part["Type"] == "ParamExp" and bool(part.get("Short"))


def check_numbers(words: Sequence[Word]) -> None:
    """Words that zsh takes for sums, in which it evaluates subscripts; raises `NotUnderstood`."""
    while words and words[0].text in {"builtin", "command", "--", "exec"}:
        words = words[1:]
    name = words[0].text if words else ""
    if name in _TAKING_NUMBERS:
        numbers = words[1:]
    elif name == "printf" and has_number_format(words):
        numbers = words[2:]
    else:
        return
    if any("[" in word.text and _MAY_RUN & set(word.text) for word in numbers):
        raise NotUnderstood(f"zsh evaluates a subscript behind {name}; write the number itself")
    if name != "printf" and any(_is_printed(word) for word in numbers if name not in _WITH_WORDS):
        raise NotUnderstood(f"zsh evaluates what stands behind {name}; write $?, or a number")


def has_number_format(words: Sequence[Word]) -> bool:
    """Whether `printf` may take words for numbers; its format can stand behind `-v x`."""
    return any(_find_number_format(word.text) for word in words[1:4])


def _is_printed(word: Word) -> bool:
    return UNKNOWN in word.text and word.origin is Origin.OUTPUT


def check_lone_input(statement: Node) -> None:
    """`< file` alone does nothing in bash; zsh starts the program that READNULLCMD names."""
    call, redirections = statement.get("Cmd") or {}, statement.get("Redirs", ())
    is_empty = not call or (call["Type"] == "CallExpr" and not call.keys() & {"Args", "Assigns"})
    if is_empty and len(redirections) == 1 and redirections[0]["Op"] == "<":
        raise NotUnderstood("for a lone `< file` zsh starts a pager; write `cat < file`")
