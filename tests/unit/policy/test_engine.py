"""What is denied to Read, Write and WebFetch is denied to every tool that names it."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from unit.policy.policies import CWD, HOME, policy

ALLOWED = policy(
    allow=[
        *("Read", "Write", "WebFetch", "Grep", "Glob", "LS", "mcp__fs__*", "NotebookEdit"),
        *("Task", "TodoWrite", "Other"),
    ]
)
PATHS = {
    "Read": "file_path",
    "Write": "file_path",
    "NotebookEdit": "notebook_path",
    "LS": "path",
    "mcp__fs__read_file": "path",
    "mcp__fs__anything": "filePath",
    "Other": "target_file",
}
FORBIDDEN = [
    *(".env", "sub/../.env", " .env", ".env\n", "file:///w/.env", "FILE://localhost/w/.env"),
    *("%2eenv", "~/.ssh/id_rsa", "$HOME/.ssh/id_rsa", "${HOME}/.ssh/id_rsa", "/home/bob/notes"),
    *("~bob/notes", "~root/x", "file:///home/bob/notes", ".env\u200b"),
]
ORDINARY = ["src/a.py", "notes.txt", ".env.example", "a b.txt", "100%.txt", "ünïcode.md"]
ADDRESSES = [
    *("http://169.254.169.254/", "http://2852039166/", "http://[::ffff:169.254.169.254]/"),
    *("http://[::ffff:0:169.254.169.254]/", "http://user@10.0.0.1/", "http:169.254.169.254"),
    *("//169.254.169.254/", "http://metadata.google.internal./", "http://db.internal/"),
    *("http://printer.local/", "http://router/", "http://224.0.0.1/", "http://255.255.255.255/"),
    *("http://example.com\\@169.254.169.254/", "http://169.254.169.254%2f/"),
]


def verdict(tool: str, **given: object) -> str:
    call = {"tool": tool, "input": given}
    return ALLOWED.check(call, cwd=CWD, home=HOME).verdict.word


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize("tool", PATHS)
def test_a_file_that_is_denied_is_denied_to_every_tool_and_in_every_spelling(tool: str):
    assert [each for each in FORBIDDEN if verdict(tool, **{PATHS[tool]: each}) != "deny"] == []
    assert [each for each in ORDINARY if verdict(tool, **{PATHS[tool]: each}) != "allow"] == []


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize(
    "given",
    [
        *({"FILE_NAME": ".env"}, {"dest": ".git/hooks/pre-commit"}, {"glob": "~/.ssh/*"}),
        *({"root": "..", "name": "home/ann/.ssh/id_rsa"}, {"dir": "~", "pattern": ".ssh/*"}),
        *({"items": [{"folder": "~/.ssh", "names": ["a", "id_rsa"]}]}, {"attachments": [".env"]}),
    ],
)
def test_other_keys_and_names_below_a_folder_are_looked_at(given):
    assert verdict("mcp__fs__anything", **given) == "deny"
    assert verdict("mcp__fs__anything", dir="src", name="a.py", pattern="*.py") == "allow"


@pytest.mark.requirement("POL-4", "NET-3")
@pytest.mark.parametrize(("tool", "key"), [("WebFetch", "url"), ("mcp__fs__fetch", "url"), ("Other", "endpoint")])  # fmt: skip
def test_an_address_that_is_denied_is_denied_to_every_tool(tool: str, key: str):
    assert [each for each in ADDRESSES if verdict(tool, **{key: each}) != "deny"] == []
    for ordinary in ("https://example.com/a", "https://docs.example.org/?q=x"):
        assert verdict(tool, **{key: ordinary}) == "allow"


@pytest.mark.requirement("POL-4")
def test_names_in_lists_and_tables_count():
    assert verdict("mcp__fs__read_many", paths=["a.txt", ".env"]) == "deny"
    assert verdict("mcp__fs__move", moves=[{"source": "a", "destination": ".env"}]) == "deny"
    assert verdict("mcp__fs__read_many", paths=["a.txt", "b.txt"]) == "allow"
    assert verdict("mcp__fs__read_many", paths=["a"] * 1000) == "deny"


@pytest.mark.requirement("POL-4")
def test_what_may_not_be_written_is_denied_unless_the_tool_reads():
    assert verdict("mcp__fs__write_file", path="/etc/hosts") == "deny"
    assert verdict("mcp__fs__handle", path="/etc/hosts") == "deny"
    assert verdict("mcp__fs__read_file", path="/etc/hosts") == "allow"


def test_a_text_that_mentions_a_path_is_none():
    assert verdict("Task", prompt="look at .env", description=".env") == "allow"
    assert verdict("TodoWrite", todos=[{"content": "read http://10.0.0.1/"}]) == "allow"
    assert verdict("mcp__fs__comment", body="see /home/bob/notes") == "allow"


def test_a_question_stays_a_question():
    asking = policy(allow=["mcp__fs__*"], ask=["mcp__fs__read_file"])
    call = {"tool": "mcp__fs__read_file", "input": {"path": "a.txt"}}
    assert asking.check(call, cwd=CWD, home=HOME).verdict is Verdict.ASK
    call = {"tool": "mcp__fs__read_file", "input": {"path": ".env"}}
    assert asking.check(call, cwd=CWD, home=HOME).verdict is Verdict.DENY
