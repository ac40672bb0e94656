"""Every command of a text is found, with what it gets and touches; what cannot be read is refused."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.parsing.shell.parser import MAX_TEXT_BYTES, NotUnderstood, parse
from cellwall.parsing.shell.reader import MAX_COMMANDS, read_shell
from cellwall.parsing.shell.words import UNKNOWN, Number, Word

pytestmark = pytest.mark.requirement("POL-2")


def read(text: str):
    return read_shell(text, directories=("/w",), home="/home/ann")


def commands(text: str) -> list[list[str]]:
    return [[word.text for word in each.words] for each in read(text) if each.words]


def refused(text: str) -> str:
    with pytest.raises(NotUnderstood) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a; b && c || d | e & f", ["a", "b", "c", "d", "e", "f"]),
        ("a\nb", ["a", "b"]),
        ("echo $(a $(b)) `c`", ["b", "a", "c", "echo"]),
        ('echo "$(a)" ${x:-$(b)} ${x/$(c)/$(d)}', ["a", "b", "c", "d", "echo"]),
        ("cat <(a) >(b)", ["a", "b", "cat"]),
        ("cat <<E\n$(a)\nE", ["a", "cat"]),
        ("cat <<'E'\n$(a)\nE", ["cat"]),
        ("( a; { b; } )", ["a", "b"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"]),
        ("case $(a) in $(b)) c;; *) d;; esac", ["a", "b", "c", "d"]),
        ("f() { a; }; f", ["a", "f"]),
        ("time b; ! c", ["b", "c"]),
        ("x=$(a); y=(1 $(b)); c", ["a", "b", "c"]),
        ("export X=$(a); local Y=`b`", ["a", "export", "b", "local"]),
        ("[[ $(a) == b ]] && c", ["a", "c"]),
        ("a > >(b) 2> >(c)", ["b", "c", "a"]),
        ("select x in 1; do a; done", ["a"]),
        ("for ((i=0; i<3; i++)); do a; done", ["a"]),
        ("exec a", ["exec"]),
    ],
)
def test_every_command_is_found_wherever_it_stands(text, found):
    assert [words[0] for words in commands(text)] == found


@pytest.mark.parametrize(
    "text",
    [
        r"r\m -rf x",
        "'r'm -rf x",
        'r""m "-rf" x',
        r"$'\x72m' -rf x",
        r"$'\162m' -rf x",
        r"$'\u0072m' -r''f x",
        "{rm,-rf,x}",
        "{rm,-rf} x",
        "rm  -rf   x # and so on",
    ],
)
def test_quotes_and_braces_hide_no_name(text):
    assert commands(text) == [["rm", "-rf", "x"]]


@pytest.mark.parametrize("text", ["$X a", "r$@m", "/bin/r?", "$(a) b", "${a}${b}", "~+/rm"])
def test_a_name_that_only_the_shell_knows_is_not_literal(text):
    assert not read(text)[-1].words[0].is_literal


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("a > x", [("write", "x")]),
        ("a >> x 2>&1", [("write", "x")]),
        ("a &> x", [("write", "x")]),
        ("a >| x", [("write", "x")]),
        ("a >& x", [("write", "x")]),
        ("a < x", [("read", "x")]),
        ("a <> x", [("read", "x"), ("write", "x")]),
        ("> x", [("write", "x")]),
        ("a 2>/dev/null >&2 </dev/fd/3", []),
        ("a > /dev/fd/../../etc/x", [("write", "/dev/fd/../../etc/x")]),
        ("a > ~/x", [("write", "/home/ann/x")]),
        ('a > "~/x"', [("write", "~/x")]),
        ("a > $HOME/x", [("write", "/home/ann/x")]),
        ("a > $X", [("write", UNKNOWN)]),
        ("{ a; } > x", [("write", "x")]),
    ],
)
def test_redirections_are_files(text, files):
    assert [(f.access, f.path.text) for each in read(text) for f in each.files] == files


def test_what_comes_on_standard_input_is_known():
    here, string, pipe, file, inner = (
        read("bash <<'E'\nrm x\nE")[0],
        read("bash <<< 'rm x'")[0],
        read("a | bash")[1],
        read("bash < x")[0],
        read("{ bash; } <<< 'rm x'")[-1],
    )
    assert (here.stdin, here.stdin_text) == ("text", Word("rm x\n"))
    assert (string.stdin, string.stdin_text) == ("text", Word("rm x"))
    assert (pipe.stdin, file.stdin) == ("pipe", "file")
    assert inner.stdin_text == Word("rm x")


def test_a_variable_that_is_set_once_is_known_where_it_must_have_been_set():
    assert commands("X=.env; cat $X")[-1] == ["cat", ".env"]
    assert commands("X=a && cat $X")[-1] == ["cat", "a"]
    assert commands('for f in a b; do cat "$f"; done') == [["cat", "a"], ["cat", "b"]]
    for vague in (
        "X=a; X=b; cat $X",
        "false && X=a; cat $X",
        "if a; then X=b; fi; cat $X",
        "(X=a); cat $X",
        "X=a; read X; cat $X",
        "X=a; eval b; cat $X",
        "X=a; printf -v X b; cat $X",
        "X=a; 'read' 'X' < b; cat $X",
        "X=$(a); cat $X",
        "cat $X; X=a",
    ):
        assert any(UNKNOWN in w.text for each in read(vague) for w in each.words), vague


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("a & kill $!", Number.PROCESS),
        ('a & kill "$!"', Number.PROCESS),
        ("a & PID=$!; kill $PID", Number.PROCESS),
        ("a & export PID=$!; b && kill ${PID}", Number.PROCESS),
        ("if a; then b & c; kill $!; fi", Number.PROCESS),
        ("kill $$", Number.PROCESS),
        ("a; x=$?; kill $x", Number.COUNT),
        ("f() { kill $#; }", Number.COUNT),
        ("kill ${#x}", Number.COUNT),
        ('kill "${#x[@]}"', Number.COUNT),
        ('kill "$!"', Number.PROCESSES),
        ('kill "$(nproc)"', Number.COUNT_OR_NOTHING),
        ('n=$(nproc --all --ignore=1); kill "$n"', Number.COUNT_OR_NOTHING),
        ("n=$((1 + 2)); kill $n", Number.SUM),
    ],
)
def test_what_the_shell_counts_is_a_number_and_one_word(text, number):
    (kill,) = [each for each in read(text) if each.words and each.words[0] == Word("kill")]
    assert kill.words[1:] == (Word(UNKNOWN, number=number),)
    assert kill.words[1].may_be_option is (number is Number.SUM)


@pytest.mark.parametrize(
    "text",
    [
        'a & PID="$! -9"; kill $PID',
        "a & PID=$!$x; kill $PID",
        "a & PID=-$!; kill $PID",
        "a & PID=$!; read PID; kill $PID",
        "a & PID=$!; PID=$x; kill $PID",
        "a & PID=$!; eval $x; kill $PID",
        "a & PID+=$!; kill $PID",
        "a & if b; then PID=$!; fi; kill $PID",
        "kill $!",
        "kill $(nproc)",
        "kill $RANDOM",
        "kill $(nproc > b)",
        "kill $(nproc; b)",
        "kill $(x=1 nproc)",
        "nproc() { b; }; kill $(nproc)",
        "alias nproc=b; kill $(nproc)",
        "(a &); kill $!",
        "b || { a & }; kill $!",
        "f() { a & }; f; kill $!",
        "kill $!; a &",
    ],
)
def test_what_may_be_more_than_a_number_or_nothing_is_not_one_word(text):
    (kill,) = [each for each in read(text) if each.words and each.words[0] == Word("kill")]
    assert (kill.words[1].is_split, kill.words[1].may_be_option) == (True, True)


def test_an_empty_value_is_a_word_only_between_quotes():
    text = "X=''; a $X b; a \"$X\" b; a x$X b; a $X$X b"
    assert commands(text) == [["a", "b"], ["a", "", "b"], ["a", "x", "b"], ["a", "b"]]


@pytest.mark.parametrize(
    "text",
    ['a "$@"', 'a "${@:2}"', 'a "${x[@]}"', 'a "${!x@}"', "a {,}", "a {$!,}", "export X; a $X"],
)
def test_what_may_be_no_word_or_many_is_split(text):
    assert all(word.is_split for word in read(text)[-1].words[1:])


def test_what_was_set_in_another_branch_is_not_known():
    for text in (
        "if a; then b; elif X=c; then d; fi; cat $X",
        "case a in b) X=c;; d) cat $X;; esac",
    ):
        assert commands(text)[-1] == ["cat", UNKNOWN], text
    assert commands("case a in b) X=c; cat $X;; esac") == [["cat", "c"]]


def test_no_folder_that_a_function_may_run_in_is_left_out():
    subshells = "".join(f"(cd d{number}; a); " for number in range(9))
    assert "/w/secrets" in read(f"f() {{ b; }}; {subshells}(cd secrets; f)")[0].directories
    assert refused("".join(f"cd {letter}; " for letter in "abcdef") + "g")


def test_a_name_out_of_many_stays_one_of_those_names():
    (cat,) = [each for each in read('for f in *.py; do cat "$f"; done') if each.words]
    assert cat.words[1] == Word("*.py", has_glob=True)


def test_where_a_command_runs_follows_cd():
    assert read("cd src && a")[-1].directories == ("/w", "/w/src")
    assert read("(cd src); a")[-1].directories == ("/w",)
    assert read("cd /etc; a")[-1].directories == ("/w", "/etc")
    assert UNKNOWN in read('cd "$X"; a')[-1].directories[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a\rb",
        "a\x00b",
        "a\x1b[2J",
        "a \u202e b",
        "echo $(",
        "a 'b",
        "cat <<E\nx",
        "if a; then b",
        "${x@P}",
        "echo ${!x}",
        "x='a[$(b)]'; (( x ))",
        "read x; echo $((x))",
        "[[ -v a[$(b)] ]]",
        "a[$(b)]=1",
        "echo ${a[$(b)]}",
        "echo $(( $(a) ))",
        "declare -n x=y",
        "exec 3<>/dev/tcp/1.2.3.4/80",
        "cat < /dev//tcp/evil/80",
        ":(){ :|:& };:",
        "a() { b; }; b() { a; }; a",
        "{1..100000}",
        "coproc a",
        "() a",
        "a\\",
        "echo $\\\n(a)",
        'echo "$\\\n(a)"',
        "cat <<E\n$\\\n(a)\nE",
        "a # b \\\nc",
        "cat <<E\n$(' \\\na')\nE",
        "$(" * 500 + ")" * 500,
        "a;" * (MAX_COMMANDS + 1),
        "x" * (MAX_TEXT_BYTES + 1),
        "\ud800",
    ],
)
def test_what_cannot_be_read_for_sure_is_refused(text):
    assert refused(text)


def test_nothing_is_a_text_without_commands():
    assert read("") == read("# only words") == ()


def test_the_dialect_is_bash_whatever_the_first_line_says():
    assert commands("#!/usr/bin/env fish\n[[ a == a ]] && b") == [["b"]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")
@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "if a; then b; fi",
        "a && ",
        "a |",
        "f() { a; }",
        "((",
        "case x in a) b;; esac",
        "a 'b",
        "{ a",
        "a; }",
        "for",
        "<<E\nE",
        "a &&& b",
        "a ;; b",
    ],
)
def test_what_bash_does_not_parse_is_refused(text):
    said = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    if said.returncode != 0:
        assert refused(text)
    else:
        parse(text)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="ab $(){}[];|&<>'\"\\`\n*?~=!#-/0", max_size=40))
def test_no_text_is_read_in_another_way_than_a_refusal(text):
    try:
        found = read(text)
    except NotUnderstood:
        return
    assert all(isinstance(each.words, tuple) for each in found)
