"""Path patterns match what gitignore's would, and a denial what it could mean (POL-1)."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.paths import PathPattern, normalise, readings
from cellwall.policy.rules import BadRule

CWD = "/home/u/app"


def pattern(text: str, *, is_denial: bool = False, folder: str = "/conf") -> PathPattern:
    return PathPattern.parse(text, folder=folder, home="/home/u", is_denial=is_denial)


def deny(text: str, folder: str = "/conf") -> PathPattern:
    return pattern(text, is_denial=True, folder=folder)


@pytest.mark.parametrize(
    ("path", "cwd", "normal"),
    [
        ("a", "/x", "/x/a"),
        ("./a//b/", "/x", "/x/a/b"),
        ("../a", "/x/y", "/x/a"),
        ("../../../a", "/x", "/a"),
        ("/a/./b/../c", "/x", "/a/c"),
        ("//a", "/x", "/a"),
        ("", "/x", "/x"),
        ("..", "/", "/"),
        ("a\nb", "/x", "/x/a\nb"),
    ],
)
def test_a_path_is_normalised_by_its_letters_alone(path: str, cwd: str, normal: str) -> None:
    assert normalise(path, cwd) == normal


@given(st.text(alphabet="ab./~", max_size=1500), st.text(alphabet="ab./", max_size=20))
def test_normalising_twice_changes_nothing(path: str, cwd: str) -> None:
    once = normalise(path, "/" + cwd)
    assert normalise(once) == once
    assert not {"", ".", ".."} & set(once.split("/")[1:]) or once == "/"


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("text", "hits", "misses"),
    [
        (
            "//etc/hosts",
            ["/etc/hosts", "/etc/hosts/x", "/etc//./hosts"],
            ["/etc", "/conf/etc/hosts"],
        ),
        ("//etc/**", ["/etc", "/etc/a/b"], ["/etcetera", "/home/u/app/etc/a"]),
        ("~/.ssh/**", ["/home/u/.ssh", "/home/u/.ssh/a"], ["/home/v/.ssh/a", "/home/u/.sshx"]),
        ("~", ["/home/u", "/home/u/x"], ["/home", "/home/uu"]),
        (
            "/src/*.py",
            ["/conf/src/a.py"],
            ["/src/a.py", "/home/u/app/src/a.py", "/conf/src/x/a.py"],
        ),
        ("./src/*.py", ["/home/u/app/src/a.py", "src/.py"], ["/home/u/src/a.py", "src/a.pyc"]),
        ("src/**/t.py", ["src/t.py", "src/a/b/t.py"], ["t.py", "lib/src/t.py", "src/at.py"]),
        ("src/**", ["src", "src/a", "src/a/b"], ["srcs", "lib/src/a", "."]),
        (".env", [".env", "a/b/.env", ".env/x"], ["/home/u/.env", "/etc/.env", ".envrc", "x.env"]),
        ("*.pem", ["a.pem", "k/a.pem", ".pem", "k.pem/x"], ["a.pem.txt", "/etc/a.pem"]),
        ("node_modules/", ["node_modules", "a/node_modules/b"], ["node_modules2"]),
        ("**/secret/*", ["secret/a", "x/y/secret/a/b"], ["secret", "x/secret", "/secret/a"]),
        ("**", [".", "a/b"], ["..", "/home/u"]),
        ("a/*/c", ["a/b/c", "a/.b/c/d"], ["a/c", "a/b/b/c"]),
        ("a?c", ["abc", "x/a.c"], ["ac", "a/c", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x", "a-cx"]),
        ("[!a-c]x", ["dx", "-x"], ["ax", "/x"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[]x]y", ["]y", "xy"], ["ay"]),
        ("[a\\-z]", ["a", "-", "z"], ["b"]),
        (r"\*.py", ["*.py"], ["a.py"]),
        (r"\!important", ["!important"], ["important"]),
        (r"\[x\]", ["[x]"], ["x"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("../b/*", ["/home/u/b/x"], ["b/x", "/home/b/x"]),
        ("./a/../b", ["b"], ["a/b", "a"]),
        ("foo(1).txt", ["foo(1).txt"], ["foo1.txt"]),
        ("*.p[xy]*m", ["a.pxm", "b.pyzzm"], ["a.pzm"]),
    ],
)
def test_a_pattern_matches_as_gitignore_says(text: str, hits: list[str], misses: list[str]) -> None:
    made = pattern(text)
    assert [path for path in hits if not made.matches(path, CWD)] == []
    assert [path for path in misses if made.matches(path, CWD)] == []


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("text", "path", "cwd"),
    [
        (".env", "/srv/x/.env", CWD),
        (".env", "/.env", CWD),
        ("./secrets/**", "/home/u/app/secrets/k", "/home/u/app/deep/down"),
        ("secrets/k", "../secrets/k", "/home/u/app/deep"),
        ("secrets/k", "/conf/secrets/k", CWD),
        ("/etc/passwd", "/etc/passwd", CWD),
        ("/key", "/conf/key", CWD),
    ],
)
def test_a_denial_is_not_left_behind_by_changing_the_directory(
    text: str, path: str, cwd: str
) -> None:
    assert deny(text).matches(path, cwd)
    assert not pattern(text).matches(path, cwd) or text == "/key"


def test_case_counts() -> None:
    assert not deny(".env").matches(".ENV", CWD)
    assert not deny(".env").could_match(".EN*", CWD)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("!secret", 0),
        ("a/[b", 2),
        ("a/[", 2),
        ("[]", 0),
        ("[z-a]", 0),
        ("[a-\\", 0),
        ("x[[:alpha:]]", 2),
        ("ab\\", 2),
        ("a\\/b", 1),
        ("*.{ts,js}", 2),
        ("a}", 1),
        ("~root/x", 0),
        (" a", 0),
        ("a ", 1),
        ("a\nb", 1),
        ("a\u202eb", 1),
        (f"a{UNKNOWN}", 1),
        ("*/../x", 2),
        ("**/..", 3),
        ("a/" * 129, 0),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused_at_its_place(text: str, offset: int) -> None:
    with pytest.raises(BadRule) as caught:
        pattern(text)
    assert (caught.value.offset, bool(caught.value.hint)) == (offset, True)


def test_one_slash_needs_a_file_to_be_relative_to() -> None:
    with pytest.raises(BadRule, match="this rule is in none"):
        pattern("/src/**", folder="")
    assert deny("/src/**", folder="").matches("/src/x", CWD)


def test_a_tilde_is_read_both_ways() -> None:
    assert readings("~/a", cwd="/x", home="/h") == ("/h/a", "/x/~/a")
    assert readings("~a", cwd="/x", home="/h") == ("/x/~a", "/home/a")
    assert readings("~A.b", cwd="/x", home="/h") == ("/x/~A.b",)
    assert readings("a/../b", cwd="/x", home="/h") == ("/x/a/../b",)


@pytest.mark.parametrize(
    ("text", "folder", "is_inside"),
    [
        ("~/.ssh/**", "/home/u", True),
        ("~/.ssh/**", "/", True),
        ("~/.ssh/**", "..", True),
        ("~/.ssh/**", "/home/u/.ssh", True),
        ("~/.ssh/**", "/home/v", False),
        ("~/.ssh/**", "build", False),
        ("//proc/*/mem", "/proc", True),
        (".env", "build", False),
        (".env", "/", True),
        ("secrets/k", ".", True),
        ("secrets/k", "secrets", True),
        ("secrets/k", "build", False),
    ],
)
def test_who_takes_a_folder_takes_what_is_in_it(text: str, folder: str, is_inside: bool) -> None:
    assert deny(text).lies_in(folder, CWD) is is_inside


# What is not known yet


@pytest.mark.parametrize(
    "word",
    [
        ".e*", ".en?", "*", "?env", ".[e]nv", "[.]env", ".[a-z]nv", "[.e]*", f"{UNKNOWN}/.env",
        UNKNOWN, f"{UNKNOWN}env", f"src/{UNKNOWN}", f"{UNKNOWN}/x/../.env", f"{UNKNOWN}../.env",
        "*/../.env", "a/b/.env", "**/.env", "src/**", ".*", "src/.*/.env", f".e{UNKNOWN}",
        f"{UNKNOWN}v", "*/*", ".env/*", "/.env", "/etc/*env", "x" * 5000,
        f"{UNKNOWN}/../../.e*", "..//.env", f"{UNKNOWN}{UNKNOWN}",
    ],
)  # fmt: skip
def test_a_word_that_could_become_a_denied_path_is_denied(word: str) -> None:
    assert deny(".env").could_match(word, CWD)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (".env", "src/*.py"),
        (".env", "*.py"),
        (".env", "src/a*"),
        (".env", "a.env*"),
        ("//etc/**", "*"),
        ("//etc/**", "/e*x"),
        ("~/.ssh/**", "src/*"),
        ("//etc/shadow", "/etc/host*"),
        ("secrets/**", "src/[ab].py"),
        ("//proc/*/mem", "/proc/*/m?m?"),
        ("*.pem", "*.py"),
    ],
)
def test_a_word_that_cannot_become_a_denied_path_is_not(text: str, word: str) -> None:
    assert not deny(text).could_match(word, CWD)


def test_wildcards_find_what_they_usually_do_unless_we_are_wary() -> None:
    def usual(text: str, word: str) -> bool:
        return deny(text).could_match(word, CWD, wary=False)

    assert not any(usual(".env", word) for word in ("*", "?env", "[.]env", "**/x.py", "*/*"))
    assert all(
        usual(".env", word) for word in (".e*", f"{UNKNOWN}/.env", "**/.env", ".*", ".env/*")
    )
    assert not any(usual("*.pem", word) for word in ("src/*/a.py", "**/a.py"))
    assert all(usual("*.pem", word) for word in ("*", "src/*", "**", "k.pem/*", "**/*.p*", UNKNOWN))
    assert all(usual("secrets", word) for word in ("*/x", "**/x", "s*"))


def test_dots_that_the_shell_finds_by_a_wildcard_lead_up() -> None:
    """In most shells `.*` is also `..`."""
    assert deny("//home/u/key").could_match(".*/key", CWD)
    assert deny("//etc/shadow").could_match(".*/.*/.*/etc/shadow", CWD)
    assert not deny("//home/u/key").could_match(".a*/key", CWD)


NAMES = st.text(alphabet="ab.", min_size=1, max_size=3)
RULES = st.builds(
    lambda head, names: head + "/".join(names),
    st.sampled_from(["", "./", "//", "~/", "/", "//**/", "//home/"]),
    st.lists(
        st.one_of(
            NAMES, st.sampled_from(["*", "**", "a*", "*b", "?", "[ab]", "[!a]", ".*", "a?b"])
        ),
        min_size=1,
        max_size=4,
    ),
)
SMALL = st.text(alphabet="ab./", max_size=6)


def piece(kind: str, text: str) -> tuple[str, str]:
    """What stands in the word, and what it becomes."""
    flat = text.replace("/", "")
    match kind:
        case "unknown":
            return UNKNOWN, text
        case "star":
            return "*", flat
        case "one":
            return "?", flat[:1] or "a"
        case "class":
            return f"[{flat[:1] or 'a'}x]", flat[:1] or "a"
        case _:
            return text, text


PIECES = st.lists(
    st.builds(piece, st.sampled_from(["text", "text", "unknown", "star", "one", "class"]), SMALL),
    max_size=6,
)


def is_possible(written: str, became: str) -> bool:
    """A wildcard never becomes `.` or `..` unless a dot is written; see bash(1), dotglob."""
    if UNKNOWN in written or written.count("/") != became.count("/"):
        return True
    for mine, its in zip(written.split("/"), became.split("/"), strict=True):
        if its in {".", ".."} and mine != its and not mine.startswith("."):
            return False
    return True


@pytest.mark.requirement("POL-1")
@given(RULES, PIECES, st.sampled_from(["/", "/a", "/a/b", "/home/u/a.b"]), st.booleans())
def test_no_expansion_of_a_word_escapes_a_denial(
    text: str, pieces: list[tuple[str, str]], cwd: str, is_denial: bool
) -> None:
    try:
        made = pattern(text, is_denial=is_denial, folder="/a")
    except BadRule:
        return
    word = "".join(written for written, _ in pieces)
    path = "".join(became for _, became in pieces)
    if path and is_possible(word, path) and made.matches(path, cwd):
        assert made.could_match(word, cwd)


@given(RULES, SMALL.filter(bool), st.sampled_from(["/", "/a/b"]))
def test_for_a_known_word_both_questions_have_one_answer(text: str, path: str, cwd: str) -> None:
    try:
        made = pattern(text, is_denial=True, folder="/a")
    except BadRule:
        return
    assert made.could_match(path, cwd) == made.matches(path, cwd)


@given(RULES, SMALL.filter(bool), st.sampled_from(["/", "/a/b"]))
def test_a_denial_matches_whatever_an_allow_would(text: str, path: str, cwd: str) -> None:
    try:
        made = pattern(text, folder="/a")
    except BadRule:
        return
    if made.matches(path, cwd):
        assert pattern(text, is_denial=True, folder="/a").matches(path, cwd)


@given(RULES, SMALL.filter(bool), NAMES.filter(lambda name: set(name) != {"."}))
def test_what_lies_beneath_a_match_matches(text: str, path: str, name: str) -> None:
    try:
        made = pattern(text, folder="/a")
    except BadRule:
        return
    if made.matches(path, "/a"):
        assert made.matches(f"{path}/{name}", "/a")


@given(st.text(alphabet="ab*?", min_size=1, max_size=8), st.text(alphabet="ab", max_size=8))
def test_wildcards_in_a_name_agree_with_fnmatch(text: str, name: str) -> None:
    if "**" in text or not name:
        return
    assert pattern(f"//x/{text}").matches(f"/x/{name}", "/") == fnmatch.fnmatchcase(name, text)


@pytest.mark.requirement("POL-12")
def test_the_folder_above_what_a_wildcard_finds_could_be_anywhere() -> None:
    made = deny("~/.netrc")
    for path in ("*/../.netrc", "[l]ink/sub/../.netrc", "/proc/[0-9]*/cwd/../.netrc"):
        assert made.could_match(path, CWD)
    assert not made.could_match("link/../.netrc", CWD)
    assert not made.could_match("*/sub/a", CWD)


@given(st.text(max_size=40), st.booleans())
def test_whatever_is_written_is_a_pattern_or_a_bad_rule(text: str, is_denial: bool) -> None:
    try:
        made = pattern(text, is_denial=is_denial)
        offset = 0
    except BadRule as error:
        made, offset = deny("x"), error.offset
    assert 0 <= offset <= len(text)
    made.matches("/a/b", "/a")
    made.could_match(f"*/{UNKNOWN}/a", "/a")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a*" * 60 + "b", "a" * 4000),
        ("**/" + "*a/**/" * 60 + "x", "a/" * 2000),
        ("[ab]*" * 60 + "c", "ab" * 2000),
        ("//**/" + "?*" * 60, "x" * 4000),
    ],
)
def test_no_pattern_takes_long(text: str, path: str) -> None:
    made = deny(text)
    start = time.thread_time()
    made.matches(path, CWD)
    for word in (path[:1000], path[:1000].replace("a", "*"), UNKNOWN + path[:1000]):
        made.could_match(word, CWD)
    assert time.thread_time() - start < 5
