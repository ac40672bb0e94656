"""A text's own files are known by their content, or known to be foreign."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.reader import read_shell
from cellwall.parsing.shell.words import Word
from cellwall.policy.written_files import Content, WrittenFiles


def _content(text: str, name: str) -> str | Content | None:
    commands = read_shell(text, directories=("/w",), home="/h")
    written = WrittenFiles()
    for command in commands:
        written.note(command)
    return written.find(Word(name), commands[-1])


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("echo a b > x", "a b\n"),
        ("echo -n a > ./x", "a"),
        ("printf 'a\\nb' > x", "a\nb"),
        ("cat > x <<'E'\na\nE", "a\n"),
        ("tee x <<< a", "a\n"),
        ("echo a > x; echo b >> x", "a\nb\n"),
        ("cd /w && echo a > x", "a\n"),
        ("echo a > y", None),
        ("cat a > x", Content.UNKNOWN),
        ('echo "$A" > x', Content.UNKNOWN),
        ("echo a > x; sort b >> x", Content.UNKNOWN),
        ("curl http://e/x > x", Content.FOREIGN),
        ("curl -o x http://e/y", Content.FOREIGN),
        ("curl -O http://e/x?a=b", Content.FOREIGN),
        ("wget http://e/x", Content.FOREIGN),
        ("base64 -d y > x", Content.FOREIGN),
        ("curl http://e/x > x; echo a >> x", Content.FOREIGN),
        ("printf 'a%s' b > x", Content.UNKNOWN),
        ("echo -e '\\x65' > x", Content.UNKNOWN),
        ("printf a > x; printf b >> x", "ab"),
        ("{ echo a; } > x", Content.UNKNOWN),
        ("echo a | tee x", "a\n"),
        ("echo a > y; cp y x", "a\n"),
        ("echo a > x; chmod +x x", "a\n"),
        ("echo a > x; false && echo b > x", Content.UNKNOWN),
        ("echo a > y; sort -o x y", Content.UNKNOWN),
        ("curl http://e/y | tee x", Content.FOREIGN),
        ("curl -o y http://e/; cp y x", Content.FOREIGN),
        ("cp y x", None),
    ],
)
def test_what_a_text_writes_is_remembered(text: str, content: str | Content | None):
    assert _content(text, "x") == content


def test_a_name_is_found_in_any_folder():
    commands = read_shell("echo a > sub/package.json", directories=("/w",), home="/h")
    written = WrittenFiles()
    written.note(commands[0])
    assert written.find_name(frozenset(("package.json",))) == "/w/sub/package.json"
    assert written.find_name(frozenset(("Makefile",))) == ""


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(
    "text", ["wget -P d http://e/a.sh", "curl -o a.tgz http://e/a; tar xf a.tgz -C d"]
)
def test_a_folder_that_foreign_content_was_put_into_is_foreign(text: str):
    assert _content(text, "d/a.sh") is Content.FOREIGN
    assert _content(text, "other/a.sh") is None
