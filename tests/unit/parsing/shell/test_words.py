"""The closed set of plain forms: what is outside of it is unknown or refused."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import read_shell
from cellwall.parsing.shell.words import UNKNOWN, Word

pytestmark = pytest.mark.requirement("POL-2", "POL-12")

HOME = "/home/ann"


def words(text: str) -> list[Word]:
    return [
        word
        for each in read_shell(f"a {text}", directories=("/w",), home=HOME)[-1:]
        for word in each.words
    ][1:]


def texts(text: str) -> list[str]:
    found = words(text)
    assert all(word.is_literal for word in found), text
    return [word.text for word in found]


def refusal(text: str) -> str:
    with pytest.raises(NotUnderstood) as caught:
        read_shell(text, directories=("/w",), home=HOME)
    return str(caught.value)


# --- plain forms: the table of words.py, one by one


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a-b/c.d", ["a-b/c.d"]),
        (r"a\ b \$x \{a,b\}", ["a b", "$x", "{a,b}"]),
        ("'$x {a,b} ~'", ["$x {a,b} ~"]),
        (r'"a \$x \"b\" \c"', ['a $x "b" \\c']),
        (r"$'a\tb\n\x41\101\u41\U00000041\'\\'", ["a\tb\nAAAA'\\"]),
        ("~ ~/x ~/'a b'", [HOME, f"{HOME}/x", f"{HOME}/a b"]),
        ("if=~/x x+=~ x=a:~/b", [f"if={HOME}/x", f"x+={HOME}", f"x=a:{HOME}/b"]),
        ("--file=~/x a:~/b x\\=~ 'x'=~", ["--file=~/x", "a:~/b", "x=~", "x=~"]),
        ("$HOME/x ${HOME}x", [f"{HOME}/x", f"{HOME}x"]),
        ("src/{a,b}/c", ["src/a/c", "src/b/c"]),
        ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"]),
        ("x{,.bak}", ["x", "x.bak"]),
        ("{,} b", ["b"]),
        ('{"",b}', ["", "b"]),
        ("{'a,b',c\\,d}", ["a,b", "c,d"]),
        ("{~/a,b}", [f"{HOME}/a", "b"]),
        ("{~,b}/c", [f"{HOME}/c", "b/c"]),
        ("a{~/b,c}", ["a~/b", "ac"]),
        ("{1..3} {3..1..2} {-1..1}", ["1", "2", "3", "3", "1", "-1", "0", "1"]),
        ("{0..10..5} {08..10} {1..03}", ["0", "5", "10", "08", "09", "10", "01", "02", "03"]),
        ("{a..c} {C..A} {a..e..2}", ["a", "b", "c", "C", "B", "A", "a", "c", "e"]),
        ("$HOME/{a,b}", [f"{HOME}/a", f"{HOME}/b"]),
        ("${HOME}{a,b}", [f"{HOME}a", f"{HOME}b"]),
        ('"$HOME"{a,b}', [f"{HOME}a", f"{HOME}b"]),
        ("{} {a} @{1} {{.ShellNames}}", ["{}", "{a}", "@{1}", "{{.ShellNames}}"]),
        ("{a b,c}", ["{a", "b,c}"]),
    ],
)
def test_plain_words_have_the_value_that_bash_gives_them(text, found):
    assert texts(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "~+/x",
        "~-",
        "~'a'",
        "~$x",
        r"~\a",
        "~:x",
        "a[0]=~/x",
        "$x",
        "$(b)",
        "${x:-a}",
    ],
)
def test_other_words_are_unknown(text):
    assert all(UNKNOWN in word.text for word in words(text))


def test_what_an_unquoted_value_becomes_is_unknown_where_it_could_be_other_words():
    for value in ("'a b'", "'*'", "'a\\*'", "'[a]'", "'a\tb'"):
        (found,) = words(f"; x={value}; a $x")
        assert found == Word(UNKNOWN, is_split=True), value
    (found,) = words("; for x in *.py; do a $x; done")
    assert found == Word(UNKNOWN, is_split=True)
    (found,) = words('; for x in *.py; do a "$x"; done')
    assert found == Word("*.py", has_glob=True)


# --- refused: braces that could make or change another expansion


@pytest.mark.parametrize(
    "word",
    [
        "{$,a}{a['$(id)']}",
        "{$,a}{x@P}",
        "{$HOM,x}E",
        "$x{a,b}",
        "{$x,y}b",
        "$x{1..2}",
        "{a,b}${x:-c}",
        '{a,b}"${x:-c}"',
        "{a,b}`c`",
        "{a,b}$(c 'd')",
        "{a,b}$((1))",
        "{a..Z}",
        "{Z..a..2}",
        "{a..1}",
        "{1..$x}",
        "{a..\\c}",
        "{-01..1}",
        "{p}0,x}",
        "{}{a,b}",
        "{a,b}}",
        "{{a,b}",
        "$[{1,2}]",
        '"${x:-"{a,b}"}"',
        "${x:-{a,b}}",
        '"`b "{a,b}"`"',
        "$${a,b}",
        "{1..100000}",
    ],
)
def test_braces_that_could_make_another_expansion_are_refused(word):
    assert refusal(f"x=1; echo {word}")


def test_a_refusal_says_what_to_write_instead():
    assert "${name}{a,b}" in refusal("echo $x{a,b}")
    assert "seq" in refusal("echo {1..$n}")
    assert "quote the word" in refusal("echo {a..Z}")
    assert "$((…))" in refusal("echo $[1]")
    assert "$(…)" in refusal(r"echo `a \\b`")
    assert "write the character itself" in refusal(r"echo $'\x{69}'")


@pytest.mark.parametrize(
    "escape",
    [
        *(
            r"\x{69}",
            r"\xg",
            r"\0",
            r"\x00",
            r"\545",
            r"\cA",
            r"\q",
            r"\?",
            r"\u20ac",
            r"\x7f",
            r"\1",
        )
    ],
)
def test_escapes_that_shells_read_differently_are_refused(escape):
    assert refusal(f"echo $'a{escape}b'")


@pytest.mark.parametrize(
    "text",
    [
        *("export x={a,b}", "declare x={1..2}", "let x<(a)", "let x>a", "echo ${x:-<(a)}"),
        *("[[ ${x/<(a)/b} -eq 1 ]]", "echo a<(b)", "echo <(a)b", "echo >()", "a >& -b", "a <& -b"),
        *(
            "echo `echo $x#; a`",
            "echo $(echo $((1))#; a\n)",
            'echo $"a"',
            "a > {b,c}",
            "a > {,}",
            "time -- a",
            "time $x a",
        ),
    ],
)
def test_spellings_that_are_read_in_two_ways_are_refused(text):
    assert refusal(text)


# --- redirections


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a <.en{v..v}", ".env"),
        ("a < {.env,}", ".env"),
        ("a < ~/x", f"{HOME}/x"),
        ("a > x=~/y", f"x={HOME}/y"),
        ("a < {~/x,}", f"{HOME}/x"),
    ],
)
def test_the_target_of_a_redirection_is_a_word_like_any_other(text, path):
    (command,) = read_shell(text, directories=("/w",), home=HOME)
    assert [file.path for file in command.files] == [Word(path)]


def test_a_pattern_in_a_target_stays_one():
    (command,) = read_shell("a < .e*", directories=("/w",), home=HOME)
    assert command.files[0].path == Word(".e*", has_glob=True)


def test_here_strings_and_values_expand_no_braces():
    (command,) = read_shell("a <<< {b,c}", directories=("/w",), home=HOME)
    assert command.stdin_text == Word("{b,c}")
    assert words("; x={b,c}; a $x") == [Word("{b,c}")]
    assert words("; x=~/b:~/c; a $x") == [Word(f"{HOME}/b:{HOME}/c")]


# --- zsh


@pytest.mark.parametrize(
    "text",
    [
        *("ls *(e:'id':)", "ls *(.)", "ls +(a)", "ls !(a)", "ls =id", "x==id", "ls ~[a]", "ls $~x"),
        *("ls $=x", "ls $^x", "ls $+x", "ls $x[1]", 'ls "$x[1]"', "ls $#x", "x=a; ls $x:h"),
        *('x=a; ls "$x:t"', "ls $HOME:h", "cat <1-9>x", "cat < a < b", "cat <<< a < b"),
    ],
)
def test_what_zsh_would_run_in_another_way_is_refused(text):
    assert refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            '[ "$a" == b ]',
            '[ "$a" = b ]',
            "ls a=b",
            "scp a $host:dir",
            "docker run -v $PWD:/app a",
        ),
        *("[[ $x == @(a|b) ]] && a", "case $x in @(a|b)) a;; esac", "grep 'a$' b", "ls ${x}[1]"),
        *('echo "$x" "$#"', "cat < a > b", "echo 5% +x ^y", 'x=a; ls "${x}:t"'),
    ],
)
def test_what_zsh_reads_alike_or_refuses_itself_is_read(text):
    assert read_shell(text, directories=("/w",), home=HOME)


@pytest.mark.parametrize(
    "text",
    [
        *("cp $DIR/{a,b} .", "echo {1..3}", "mkdir -p src/{a,b}/c", "for f in *.py; do a; done"),
        *("ls ~/x", "cp x{,.bak}", "find . -exec mv {} {}.bak \\;", "git stash show stash@{0}"),
        *(
            "diff <(a) <(b)",
            "git diff HEAD@{1}",
            "a | awk '{print $1}'",
            'curl -d \'{"a":1,"b":2}\' u',
        ),
        *("cp $(git rev-parse --show-toplevel)/{a,b} .", "echo `uname -a | awk '{print $2}'`"),
        *(
            "a=\"${b:-$(awk '{print}' c)}\"",
            'echo "${x:-default}"',
            "for i in {01..10}; do a; done",
        ),
    ],
)
def test_ordinary_words_stay_understood(text):
    assert read_shell(text, directories=("/w",), home=HOME)


# --- commands that bash finds where the tree has none


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a >& '$(b)'",
            "a >& $x",
            "a >& '~/b'",
            "a >& \\~",
            "a 1>& '{b,}'",
            "a >& 'b c'",
            "a >& b*",
        ),
        *("time -- a", "time $x a", "time -x a", "jobs -x a", "jobs -lx a", "jobs $x a"),
        *("[[ a == @($(b)|c) ]]", "[[ a == @(`b`) ]]", "case a in +($(b))) c;; esac"),
    ],
)
def test_commands_that_the_tree_does_not_show_are_refused(text):
    assert refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("a > b 2>&1", "a >& b.log", "a >&2", "a 3>&1 1>&2 2>&3-", "a <&-", "a &> b", "a 2>& 1"),
        *("time a -x", "time -p a", "time (a)", "jobs", "jobs -l", "jobs %1"),
    ],
)
def test_their_everyday_forms_are_read(text):
    assert read_shell(text, directories=("/w",), home=HOME)


# --- sh


@pytest.mark.parametrize("text", ["((id))", "[[ a && id ]]", "[[ a > b ]]", "c && ((id))"])
def test_what_dash_would_run_is_refused_in_text_that_sh_gets(text):
    assert read_shell(f"{text}; a", directories=("/w",), home=HOME)
    with pytest.raises(NotUnderstood):
        read_shell(f"{text}; a", directories=("/w",), home=HOME, is_bash=False)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a >! b",
            "path=a; b",
            "for path in a; do b; done",
            "read path; b",
            "fpath=a",
            "cdpath=a",
        ),
        *("functions[a]=b", "aliases=(a b)", "galiases[a]=b", "commands[a]=b", "dis_aliases[a]=b"),
    ],
)
def test_variables_and_operators_that_only_zsh_knows_are_refused(text):
    assert refusal(text)


def test_where_the_shell_was_before_the_text_is_not_known():
    for text in ("cd -; a", "popd; a"):
        found = read_shell(text, directories=("/w",), home=HOME)[-1].directories
        assert any(UNKNOWN in each for each in found), text
    assert read_shell("cd b; cd -; a", directories=("/w",), home=HOME)[-1].directories == (
        "/w",
        "/w/b",
    )


@pytest.mark.parametrize(
    "text", ["~bob", "~bob/x", "x=~bob", "; x=~bob; a $x", "~b{ob,en}/x", "~root/"]
)
def test_the_home_of_another_user_is_refused(text):
    with pytest.raises(NotUnderstood, match="home folder of another user"):
        words(text)


# --- numbers that zsh evaluates


@pytest.mark.requirement("POL-2", "POL-12")
@pytest.mark.parametrize(
    "text",
    [
        "printf %d 'PATH[$(id)]'",
        "printf '%*s' 'PATH[$(id)]' x",
        "printf '%s%5.2f' x 'PATH[`id`]'",
        "printf -- '%1$d' 'path[$(id)]'",
        "builtin printf %x 'PATH[$(id)]'",
        "exit 'PATH[$(id)]'",
        "command exit 'PATH[$(id)]'",
        "shift 'PATH[$(id)]'",
        "for i in 1; do break 'PATH[$(id)]'; done",
        "f() { return 'PATH[$(id)]'; }",
        "test -t 'PATH[$(id)]'",
        "read -t 'PATH[$(id)]' x",
        "exit $(cat f)",
    ],
)
def test_a_number_that_zsh_evaluates_is_refused(text: str):
    with pytest.raises(NotUnderstood, match="zsh"):
        read_shell(text, directories=("/w",), home="/home/ann")


@pytest.mark.requirement("POL-2", "POL-12")
@pytest.mark.parametrize(
    "text",
    [
        "printf '%s\\n' 'a[$(b)]'",
        "printf '%d\\n' 5",
        "printf '100%%' 'a[$b]'",
        "exit $?",
        "exit $rc",
        "[ -t 1 ]",
        "read -t 5 x",
    ],
)
def test_other_numbers_are_read(text: str):
    assert read_shell(text, directories=("/w",), home="/home/ann")


@pytest.mark.requirement("POL-12")
def test_a_format_in_quotes_leaves_values_known():
    known = read_shell('y=a; printf "%s\\n" x; cat $y', directories=("/w",), home="/home/ann")
    assert known[-1].words[-1].text == "a"
    for option in ('"-v"', '""-v', '"${z}"', "\\-v", "$'-v'"):
        text = f"y=a; printf {option} y b; cat $y"
        found = read_shell(text, directories=("/w",), home="/home/ann")
        assert not found[-1].words[-1].is_literal


@pytest.mark.requirement("POL-12")
@pytest.mark.parametrize(
    "setter",
    [
        "printf {-v,y} b",
        "printf {-,x}v y b",
        "read {y,z} <<< b",
        "read y{,} <<< b",
        "read [y] <<< b",
        'read "y$z" <<< b',
        "mapfile {-t,y} < b",
        "getopts {a,y}",
        "unset {y,z}",
        "wait {-p,y}",
    ],
)
def test_a_builtin_may_set_what_braces_and_wildcards_name(setter: str):
    text = f"y=a; {setter}; cat $y"
    assert not read_shell(text, directories=("/w",), home="/h")[-1].words[-1].is_literal


@pytest.mark.requirement("POL-2", "POL-12")
@pytest.mark.parametrize("text", ["./x=[ a", "1=[/x a", "a-b=[x] a", "x=1 ./y=[ a", "a/b+=[ a"])
def test_a_program_that_looks_like_an_assignment_is_refused(text: str):
    with pytest.raises(NotUnderstood, match="not a variable name"):
        read_shell(text, directories=("/w",), home="/home/ann")


@pytest.mark.requirement("POL-2")
def test_what_stands_before_an_equals_sign_is_a_program_or_a_name():
    for text in ("1=./x a", "./x=y a", "a-b=c a", "./a[0]=x a"):
        assert read_shell(text, directories=("/w",), home="/h")[0].words[-1].text == "a"
        assert len(read_shell(text, directories=("/w",), home="/h")[0].words) == 2
    assert read_shell("_x1=[ a", directories=("/w",), home="/h")[0].words == (Word("a"),)
