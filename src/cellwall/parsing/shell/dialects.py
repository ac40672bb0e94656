"""Forms that zsh, dash or another sh reads differently from bash. Pure.

The judged language is bash's, and sh's as far as bash and dash read a text alike. An agent's host
may pass the text to the user's login shell, which on many machines is zsh. So a form that zsh
expands to something else, or runs as code, is refused although it is harmless in bash. Aliases,
options and functions that the user's start-up files define are out of reach.

    *(…)  +(…)  ?(…)   extended globs in bash; in zsh `*(e:'id':)` runs code for each name
    =name              in zsh the path of that program
    ~[…]               in zsh the result of a function (see marks.py)
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

from cellwall.parsing.shell.marks import Mark
from cellwall.parsing.shell.parser import Node, NotUnderstood, nodes_of
from cellwall.parsing.shell.words import UNKNOWN, Origin, Word

_FLAGS = frozenset("~=^+")
_is_name_sign = re.compile(r"[A-Za-z0-9_]").fullmatch
_is_number_glob = re.compile(r"[0-9]*-[0-9]*").fullmatch
_modifies = re.compile(r":[A-Za-z&]").match

# The parser leaves the pattern as text, and bash expands it: `[[ a == @($(id)) ]]` runs id.
is_plain_pattern = re.compile(r"[\w.,:/*?|-]*").fullmatch
_SEARCHED = frozenset(("path", "fpath", "cdpath", "module_path"))
_TABLES = frozenset(
    ("functions", "aliases", "galiases", "saliases", "commands", "options", "nameddirs")
)

_TAKING_NUMBERS = frozenset(
    ("exit", "return", "shift", "break", "continue", "logout", "bye", "test", "[", "read")
)
_WITH_WORDS = frozenset(("test", "[", "read"))
"""Most words of these builtins are no numbers."""
_find_number_format = re.compile(
    r"%[^%a-zA-Z]*(?:[lhjztLq]*[diouxXeEfFgGaAn]|[^%a-zA-Z]*\*)"
).search
_MAY_RUN = frozenset("$`(")

EXTENDED_GLOB = "zsh runs code in patterns such as *(…); name the files, or use find"


def check_word(marks: Sequence[Mark]) -> None:
    """A word of a command, once its braces are expanded; raises `NotUnderstood`."""
    if marks[:1] == ["="] and len(marks) > 1 and _is_sign(marks[1]):
        raise NotUnderstood("zsh expands =name to the path of a program; quote the word")
    for left, right in pairwise(marks):
        if left == "$" and right in _FLAGS:
            raise NotUnderstood(f"zsh expands ${right}; put the dollar sign in single quotes")


def _is_sign(mark: Mark) -> bool:
    return not isinstance(mark, str) or _is_name_sign(mark) is not None or mark in "/.~"


def check_assigned(name: str, *, is_element: bool) -> None:
    """`is_element`: a list, or one element, and not a text."""
    if name in _SEARCHED or (is_element and name.removeprefix("dis_") in _TABLES):
        raise NotUnderstood(f"in zsh the variable {name} selects what runs; choose another name")


def check_target(operator: str, text: str) -> None:
    """The target of a redirection."""
    if operator == "<" and _is_number_glob(text):
        raise NotUnderstood("zsh reads <…-…> as a pattern; put ./ before the file name")
    if text.startswith("!") and operator != "<<<":
        raise NotUnderstood("zsh reads >! as an operator; put ./ before the file name")


def check_following(name: str, text: str, *, is_known: bool) -> None:
    """`$name`, and the text right after it; `is_known`: the text itself sets the variable."""
    if text.startswith("["):
        raise NotUnderstood(f"zsh reads ${name}[…] as a subscript; write ${{{name}}}[…]")
    if name == "#" and _is_name_sign(text[:1]):
        raise NotUnderstood(f"zsh reads $#{text[:1]}… as a length; write ${{#}}{text[:1]}…")
    if is_known and _modifies(text):
        raise NotUnderstood(f"zsh changes the value in ${name}{text}…; write ${{{name}}}{text}…")


def is_short(part: Node) -> bool:
    """`$name`, without braces."""
    return part["Type"] == "ParamExp" and bool(part.get("Short"))


def check_numbers(words: Sequence[Word]) -> None:
    """Words that zsh evaluates as arithmetic, subscripts included; raises `NotUnderstood`."""
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
        raise NotUnderstood(f"zsh evaluates a subscript after {name}; write the number itself")
    if name != "printf" and any(_is_printed(word) for word in numbers if name not in _WITH_WORDS):
        raise NotUnderstood(f"zsh evaluates the word after {name}; write $?, or a number")


def has_number_format(words: Sequence[Word]) -> bool:
    """Whether `printf` may read words as numbers; the format can follow `-v x`."""
    return any(_find_number_format(word.text) for word in words[1:4])


def _is_printed(word: Word) -> bool:
    return UNKNOWN in word.text and word.origin is Origin.OUTPUT


def check_lone_input(statement: Node) -> None:
    """`< file` alone does nothing in bash; zsh starts the program that READNULLCMD names."""
    call, redirections = statement.get("Cmd") or {}, statement.get("Redirs", ())
    is_empty = not call or (call["Type"] == "CallExpr" and not call.keys() & {"Args", "Assigns"})
    if is_empty and len(redirections) == 1 and redirections[0]["Op"] == "<":
        raise NotUnderstood("for a lone `< file` zsh starts a pager; write `cat < file`")


# Forms that bash reads in one way and a plain sh (dash, busybox) in another.
#
# The system's `sh` reads the text of `sh -c`. dash reads these forms as commands, or ends a quote
# in the middle of them, and so runs commands that bash would not:
#
#     echo $'\'; id #'        in dash `$` and the quoted text `\`; id is a command
#     echo a &> b id          in dash `echo a &` and `> b id`
#     x+=./a  x[0]=./a        in dash the program `x+=./a`
#     declare, typeset, let   in dash programs: nothing is set
#     export x=$y             older ones split $y, and set what stands in it
#
# `[[`, `((`, `time` and `function` are looked at where they are read (reader.py). What is an error
# in dash runs nothing, and is read as bash reads it.

_KNOWN = frozenset(("export", "readonly", "local"))
_SPLIT = frozenset(("ParamExp", "CmdSubst"))
_USE_BASH = "rewrite the command for sh, or use bash -c"


def check_sh(tree: Node) -> None:
    """Raises `NotUnderstood` where the text holds a form that bash and sh read differently."""
    for node in nodes_of(tree):
        match node.get("Type"):
            case "SglQuoted" if node.get("Dollar"):
                raise NotUnderstood(f"sh does not know $'…'; {_USE_BASH}")
            case "LetClause":
                raise NotUnderstood(f"sh does not know let; {_USE_BASH}")
            case "DeclClause":
                _check_declared(node)
            case None if str(node.get("Op", "")).startswith("&>"):
                raise NotUnderstood("sh ends the command at &>; write > FILE 2>&1")
            case None if "Name" in node and node.keys() & {"Append", "Index", "Array"}:
                raise NotUnderstood(f"sh knows only plain assignments; {_USE_BASH}")
            case _:
                pass


def _check_declared(clause: Node) -> None:
    name = clause["Variant"]["Value"]
    if name not in _KNOWN:
        raise NotUnderstood(f"sh does not know {name}; {_USE_BASH}")
    for argument in clause.get("Args", ()):
        parts = argument.get("Value", {}).get("Parts", ())
        if any(part["Type"] in _SPLIT for part in parts):
            raise NotUnderstood(f"some sh split the words after {name}; quote the words")


# Expansions whose spelling, and not whose place in the tree, decides what bash does.
#
# bash expands the braces in a word before it parses the expansions of the word: the inner quotes of
# `"${x:-"{a,b}"}"` end the outer ones, and `$[{1,2}]` is two words. In backquotes a backslash is
# read twice. Such spellings are refused; each has an unambiguous alternative.

_find_bare_brace = re.compile(rb"(?<!\$)\{").search
_is_movable = re.compile(rb"""[^'"`\\{},]*""").fullmatch
_SIMPLE = frozenset(("Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param"))


def is_simple(parameter: Node) -> bool:
    """`$name` or `${name}`, and nothing else in the braces."""
    return parameter.keys() <= _SIMPLE


def source_of(node: Node, text: bytes) -> bytes:
    """The source text of a node."""
    return text[node["Pos"]["Offset"] : node["End"]["Offset"]]


def is_movable(part: Node, text: bytes) -> bool:
    """Whether brace expansion can move this expansion without a change of meaning."""
    if part["Type"] == "ParamExp":
        return is_simple(part)
    if part["Type"] != "CmdSubst" or part.get("Backquotes"):
        return False
    return _is_movable(source_of(part, text)) is not None


def check_expansion(part: Node, text: bytes, *, is_quoted: bool) -> None:
    """Raises `NotUnderstood` for an ambiguous spelling of an expansion."""
    kind = part["Type"]
    if kind == "ArithmExp" and part.get("Bracket"):
        raise NotUnderstood("$[…] is ambiguous; write $((…))")
    if kind == "CmdSubst" and part.get("Backquotes"):
        _check_backquotes(source_of(part, text), is_quoted=is_quoted)
    if kind == "ParamExp" and text[part["End"]["Offset"] - 1 :][:2] == b"${":
        raise NotUnderstood("braces after $$ are ambiguous; write ${$}")
    if kind == "ParamExp" and not is_simple(part):
        source = _without_substitutions(part, text)
        if _find_bare_brace(source, 2):
            raise NotUnderstood("a brace inside ${…} is ambiguous; put the brace in a variable")
        if b"<(" in source or b">(" in source:
            # To bash a process substitution, to the parser text.
            raise NotUnderstood("${…} holds a process substitution; put it in a variable")


def _check_backquotes(source: bytes, *, is_quoted: bool) -> None:
    # Only before these does a backslash mean something else than in $(…).
    has_escape = re.search(rb"\\[$`\\\n]", source) is not None or (is_quoted and b"\\" in source)
    if has_escape or (is_quoted and b'"' in source and b"{" in source):
        raise NotUnderstood("quotes and braces in backquotes are ambiguous; write $(…)")


def _without_substitutions(part: Node, text: bytes) -> bytes:
    """The search for braces sees `$(…)` as blanks, whatever the substitution holds."""
    start, source = part["Pos"]["Offset"], bytearray(source_of(part, text))
    for inner in nodes_of(part, enters=lambda node: not is_substitution(node)):
        if not is_substitution(inner):
            continue
        first, last = inner["Pos"]["Offset"] - start, inner["End"]["Offset"] - start
        source[first:last] = b" " * (last - first)
    return bytes(source)


def is_substitution(node: Node) -> bool:
    """`$(…)`, whose text bash reads afresh; not backquotes."""
    return node.get("Type") == "CmdSubst" and not node.get("Backquotes")
