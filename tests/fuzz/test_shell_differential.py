"""What bash really runs is among what was read, for texts that nobody would write.

bash runs the text with no program to be found; each name that it looks for is told.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.policy.shell.parser import NotUnderstood
from cellwall.policy.shell.reader import read_shell
from cellwall.policy.shell.words import UNKNOWN, Number, Word

pytestmark = pytest.mark.requirement("POL-2")

# One write for each command: those in the background speak at the same time.
_TELL = 'command_not_found_handle() {{ printf "%s\\0" "$@" $\'\\001\' >&{}; }}\n'
_EXAMPLES = int(os.environ.get("CELLWALL_FUZZ_EXAMPLES", "250"))

_NAMES = ["p0", "p1", "p2", "p3"]
_ODD = [
    "\\\n",
    "\\\\\n",
    " \\\n",
    "#",
    " # x",
    "\n",
    "''",
    '""',
    "\\",
    "$",
    "`",
    "{",
    "}",
    "!",
    "\t",
]
_FORMS = [
    "{}",
    "{} a",
    "{}; {}",
    "{} | {}",
    "{} && {}",
    "{} || {}",
    "{} & {}",
    "$({})",
    '"$({})"',
    "`{}`",
    '"`{}`"',
    "({})",
    "{{ {}; }}",
    "if {}; then {}; fi",
    "for i in 1; do {}; done",
    "while {}; do {}; break; done",
    "case $({}) in *) {};; esac",
    "f() {{ {}; }}; f",
    "echo <({})",
    "echo ${{x:-$({})}}",
    'echo "${{x:-"$({})"}}"',
    "x=$({}) {}",
    "x=({} $({}))",
    "[[ $({}) == a ]]",
    "echo $(( 1 + 2 )) $({})",
    "cat <<E\n$({})\nE\n{}",
    "cat <<'E'\n$({})\nE\n{}",
    "cat <<-E\n\t`{}`\n\tE\n{}",
    "echo '{}'",
    "echo \\`{}\\`",
    "echo \"\\$({})\" $'\\'' {}",
    "{} <<< $({})",
    "! {}",
    "time {}",
    "coproc {}; {}",
    "{} > /dev/null 2>&1",
    "# {}\n{}",
    "{} # {}",
    "a=1 b=2 {}",
    "until {}; do {}; break; done",
    "select x in 1; do {}; break; done < /dev/null",
    "function g {{ {}; }}; g",
    "eval {}",
    "echo {{{},x}}",
    "{{{},x}}",
    "\\{}",
    "'{}'",
    '"{}"',
    "$'{}'",
]


@st.composite
def texts(draw, depth: int = 3) -> str:
    if depth == 0:
        return draw(st.sampled_from(_NAMES))
    form = draw(st.sampled_from(_FORMS))
    parts = [draw(texts(depth - draw(st.integers(1, depth)))) for _ in range(form.count("{}"))]
    text = form.format(*parts)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(_ODD)) + text[at:]
    return text


_SETTINGS = [
    *(":", "X=", "X=''", "X=a", "X='a b'", "X=-x", "X='*'", "X=$!", ": & X=$!", ": &", "(: &)"),
    *("X=$((0 - 1))", "export X", "export X=a", "A=()", "A=(a b)", "false && X=a", ": && X=a"),
    *("if :; then :; elif X=a; then :; fi", "case b in a) X=a;; esac", "if :; then X=a; fi"),
    *("false; X=$?", "g() { X=a; }", "g() { X=a; }; g", "X=$X", 'X="$@"', "X=$(:)", "Y=''", "Y=$X"),
    *(": || { : & }", "X=$#", "X=$!a", "X=${#A[@]}", "while false; do X=a; done"),
]
_WORDS = [
    *("$!", '"$!"', "$$", "$?", "$#", "$X", '"$X"', "${X}", "$X$Y", "a$X", "$Y", "{,b}", "{a,$X}"),
    *('"$@"', "$*", '"$*"', '"${A[@]}"', "${A[@]}", "${#A[@]}", "''", '""', "''$X", "$RANDOM"),
    *(
        "$((1 - 2))",
        '"${!X@}"',
        "$(:)",
        '"$(:)"',
        "-x",
        "'a b'",
        "{$X,$Y}",
        "$'a'",
        "\\ ",
        "${X-a}",
    ),
]
_PLACES = [
    "{}; {}",
    "{}; if :; then {}; fi",
    "case b in a) {};; b) {};; esac",
    "if :; then :; elif {}; then :; fi; {}",
    "{} && {}",
    "{} || :; {}",
    "{}; for Y in '' a; do {}; done",
    "f() {{ {}; {}; }}; f",
    "f() {{ {}; {}; }}; f '' b",
    "({}); {}",
]


@st.composite
def calls(draw) -> str:
    """One command, behind something that sets what its words are made of."""
    words = draw(st.lists(st.sampled_from(_WORDS), min_size=1, max_size=3))
    before = "; ".join(draw(st.lists(st.sampled_from(_SETTINGS), min_size=1, max_size=2)))
    return draw(st.sampled_from(_PLACES)).format(before, " ".join(["p0", *words]))


def really_called(text: str) -> list[list[str]]:
    """The commands that bash looks for, with their arguments."""
    read_end, write_end = os.pipe()
    try:
        subprocess.run(
            ["/bin/bash", "--norc", "--noprofile", "-c", _TELL.format(write_end) + text],
            env={"PATH": "/nowhere"},
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2,  # some wait for ever, for what they have started themselves
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        pass
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    with os.fdopen(read_end, "rb") as told:
        said = (told.read() or b"").decode("utf-8", "replace")
    return [each.split("\0")[:-1] for each in said.split("\1\0")[:-1]]


def is_meant(words: Sequence[Word], argv: Sequence[str]) -> bool:
    """Whether words as they were read could become these."""
    if any(word.is_split or word.has_glob for word in words):
        return True  # no word, or many
    return len(words) == len(argv) and all(map(_could_be, words, argv))


def _could_be(word: Word, text: str) -> bool:
    if word.number is not Number.NONE:
        is_number = text.removeprefix("-").isdigit() or text == ""
        return is_number and (word.may_be_option or not text.startswith("-"))
    pattern = ".*".join(map(re.escape, word.text.split(UNKNOWN)))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@pytest.mark.requirement("RED-2")
@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts())
def test_what_bash_runs_was_read(text):
    try:
        found = read_shell(text, directories=("/w",), home="/h")
    except NotUnderstood:
        return
    words = [each.words[0] for each in found if each.words]
    if any(not word.is_literal for word in words) or any(w.text == "eval" for w in words):
        return  # denied as such, or opened by the models
    assert {argv[0] for argv in really_called(text)} <= {word.text for word in words}, text


@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_the_words_that_bash_makes_were_read(text):
    try:
        commands = read_shell(text, directories=("/",), home="/h")
    except NotUnderstood:
        return
    found = [each.words for each in commands if each.words[:1] == (Word("p0"),)]
    for argv in really_called(text):
        if argv[0] == "p0":
            assert any(is_meant(words, argv) for words in found), (text, argv)


def test_the_comparison_sees_a_word_that_is_missing():
    (argv,) = really_called("p0 a $X b")
    assert argv == ["p0", "a", "b"]
    (command,) = read_shell("p0 a '' b", directories=("/",), home="/h")
    assert not is_meant(command.words, argv)
