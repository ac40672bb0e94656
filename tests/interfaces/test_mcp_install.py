"""`cellwall mcp install`: each client's own file, with all that others wrote there left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.interfaces.mcp.install import ServerList, is_ours
from interfaces.test_cli_process import in_process

PLACES = {
    ("claude-code", "project"): ("project/.mcp.json", "mcpServers"),
    ("claude-code", "user"): ("home/.claude.json", "mcpServers"),
    ("claude-desktop", "user"): ("config/Claude/claude_desktop_config.json", "mcpServers"),
    ("cursor", "project"): ("project/.cursor/mcp.json", "mcpServers"),
    ("cursor", "user"): ("home/.cursor/mcp.json", "mcpServers"),
    ("vscode", "project"): ("project/.vscode/mcp.json", "servers"),
    ("vscode", "user"): ("config/Code/User/mcp.json", "servers"),
}
THEIRS = b'{\n\t"n": 1.10,\n\t"mcpServers": {\n\t\t"other": {"command": "x"}\n\t}\n}'
WITH_COMMENTS = b"""{
    // ours
    "servers": {
        "a": {"url": "http://x//y"}, /* last */
    },
    "inputs": [],
}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("project", "home", "config/Claude", "config/Code/User"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    return tmp_path


def installed(*words: str, client: str = "claude-code", code: int = 0) -> dict[str, Any]:
    done = in_process("mcp", "install", "--client", client, "--json", *words)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize(("client", "scope"), PLACES)
def test_each_client_finds_the_server_in_its_own_file(place: Path, client: str, scope: str):
    file, key = PLACES[client, scope]
    workspace = ["--here"] if client == "cursor" else ["--workspace", ".:cow"]
    change = installed("--scope", scope, "--", *workspace, "--timeout", "9", client=client)
    assert change == {
        "file": str(place / file),
        "name": "cellwall",
        "changed": True,
        "backup": None,
        "dry_run": False,
    }
    entry = json.loads((place / file).read_bytes())[key]["cellwall"]
    assert is_ours(entry)
    assert entry["args"][-5:] == ["mcp", "--workspace", f"{place}/project:cow", "--timeout", "9.0"]
    assert entry["env"]["CELLWALL_HOME"] == os.environ["CELLWALL_HOME"]
    assert entry.get("type") == (None if client == "claude-desktop" else "stdio")


def test_what_was_there_is_kept_and_a_second_time_changes_nothing(place: Path):
    file = place / "project/.mcp.json"
    file.write_bytes(THEIRS)
    file.chmod(0o640)
    change = installed()
    assert Path(change["backup"]).read_bytes() == THEIRS
    assert file.stat().st_mode & 0o777 == 0o640
    after = file.read_bytes()
    assert after.startswith(THEIRS.removesuffix(b"\n\t}\n}") + b",\n\t\t")
    assert installed()["changed"] is False
    assert file.read_bytes() == after
    assert installed("--", "--timeout", "5")["changed"] is True
    assert len(json.loads(file.read_bytes())["mcpServers"]) == 2
    assert installed("--remove")["changed"] is True
    assert file.read_bytes() == THEIRS
    assert installed("--remove")["changed"] is False


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_nobody_else_can_read_the_file_while_it_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, mode: int
):
    file = place / "home/.claude.json"
    file.write_bytes(b'{"oauth": "secret"}')
    file.chmod(mode)
    seen = []
    change_mode = os.fchmod

    def watch(descriptor: int, last_mode: int) -> None:
        status = os.fstat(descriptor)
        seen.append((status.st_mode & 0o777, status.st_size > 0))
        change_mode(descriptor, last_mode)

    monkeypatch.setattr(os, "fchmod", watch)
    before = os.umask(0o022)
    try:
        installed("--scope", "user")
    finally:
        os.umask(before)
    assert seen == [(0o600, True)]  # all of it was there, and nobody's but the user's
    assert file.stat().st_mode & 0o777 == mode
    assert "cellwall" in json.loads(file.read_bytes())["mcpServers"]


def test_comments_stay_where_the_client_takes_them(place: Path):
    file = place / "project/.vscode/mcp.json"
    file.parent.mkdir()
    file.write_bytes(WITH_COMMENTS)
    installed(client="vscode")
    assert b"// ours" in file.read_bytes()
    assert b"/* last */" in file.read_bytes()
    installed("--remove", client="vscode")
    assert file.read_bytes() == WITH_COMMENTS


def test_a_dry_run_changes_nothing(place: Path):
    shown = installed("--dry-run", client="cursor")
    assert "cellwall" in json.loads(shown["text"])["mcpServers"]
    assert os.listdir(place / "project") == []


BROKEN = {
    "broken": b'{"mcpServers": {',
    "a list": b"[]",
    "comments that this client cannot read": b'{} // "x"',
    "a key twice": b'{"mcpServers": {}, "mcpServers": {}}',
    "servers that are none": b'{"mcpServers": []}',
    "an entry that is none": b'{"mcpServers": {"x": 1}}',
    "no UTF-8": b'{"x": "\xff"}',
    "deep": b'{"x": ' + b"[" * 100_000,
    "a blank that JSON does not know": b"\x0b",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_cannot_be_read_is_left_alone_with_a_clear_error(place: Path, broken: str):
    file = place / "project/.mcp.json"
    file.write_bytes(BROKEN[broken])
    error = installed(code=125)["error"]
    assert error["code"] == "CW-MCP-SETTINGS"
    assert "nothing was changed" in error["message"]
    assert error["hint"]
    assert file.read_bytes() == BROKEN[broken]
    assert os.listdir(place / "project") == [".mcp.json"]


def test_a_link_that_a_repository_brings_is_not_written_through(place: Path):
    target = place / "home/.bashrc"
    target.write_bytes(b"{}")
    (place / "project/.mcp.json").symlink_to(target)
    assert installed(code=125)["error"]["code"] == "CW-MCP-SETTINGS"
    (place / "project/.cursor").symlink_to(place / "home")
    assert installed(client="cursor", code=125)["error"]["code"] == "CW-MCP-SETTINGS"
    assert target.read_bytes() == b"{}"
    assert os.listdir(place / "home") == [".bashrc"]


def test_another_server_of_that_name_is_neither_replaced_nor_removed(place: Path):
    file = place / "project/.mcp.json"
    file.write_bytes(b'{"mcpServers": {"cellwall": {"command": "evil", "args": ["mcp"]}}}')
    before = file.read_bytes()
    for words in ((), ("--remove",)):
        assert installed(*words, code=125)["error"]["code"] == "CW-MCP-NAME"
    assert file.read_bytes() == before
    assert installed("--name", "walls")["changed"] is True


@pytest.mark.parametrize(
    "words",
    [
        ("--", "--no-such-option"),
        ("--", "a-command"),
        ("--", "--workspace", ".:all"),
        ("--", "--workspace", ".", "--here"),
        ("--", "--tool", "no_such_tool"),
        ("--", "--tool", ""),
        ("--", "--gateway", "--tool", " "),
        ("--name", "../x"),
        ("--name", ""),
        ("--remove", "--", "--timeout", "5"),
        ("--scope", "user", "--path", "x.json"),
    ],
)
def test_what_the_server_would_not_take_is_refused_now(place: Path, words: tuple[str, ...]):
    assert installed(*words, code=125)["error"]["code"].startswith("CW-")
    assert os.listdir(place / "project") == []


def test_the_tools_of_a_sub_agent_are_options_of_its_server(place: Path):
    installed("--name", "reader", "--", "--gateway", "--tool", "read_*", "--tool", "time__now")
    entry = json.loads((place / "project/.mcp.json").read_text())["mcpServers"]["reader"]
    assert entry["args"][-5:] == ["--gateway", "--tool", "read_*", "--tool", "time__now"]


ENDLESS = {
    "a text": b'"' + b'\\"' * 300_000,
    "a comment": b"{} " + b"/* " * 300_000,
    "a comment that only seems closed": b"{} /*/",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_never_closed_is_refused_at_once(name: str):
    """Tried again from each of its quotes it would take hours."""
    with pytest.raises(BadInput):
        ServerList.of(ENDLESS[name], key="servers", comments=True)
    closed = b'{"a": "' + b'\\"' * 300_000 + b'" ' + b"/* " * 1000 + b"*/ }"
    assert ServerList.of(closed, key="servers", comments=True).settings() == {"a": '"' * 300_000}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
_SERVERS = st.dictionaries(
    st.text(max_size=6).filter(lambda name: name != "cellwall"),
    st.dictionaries(st.text(max_size=4), _JSON, max_size=2),
    min_size=1,
    max_size=3,
)


@given(
    st.dictionaries(st.text(max_size=6), _JSON, max_size=3),
    _SERVERS,
    st.sampled_from([None, 1, 4, "\t"]),
    st.booleans(),
)
@hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 3)
def test_whatever_else_is_there_comes_back_byte_for_byte(
    settings: dict[str, Any], servers: dict[str, Any], indent: Any, comments: bool
):
    settings = {**settings, "servers": servers}
    before = json.dumps(settings, indent=indent).encode()
    entry = {"command": "x", "args": ["// no comment,}"]}
    after = ServerList.of(before, key="servers", comments=comments).with_entry("cellwall", entry)
    expected = {**settings, "servers": {**servers, "cellwall": entry}}
    read = ServerList.of(after, key="servers", comments=comments)
    assert read.settings() == expected
    assert read.with_entry("cellwall", entry) == after
    assert read.without_entry("cellwall") == before


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,/* \n\\a1', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes):
    for comments in (False, True):
        try:
            servers = ServerList.of(data, key="servers", comments=comments)
            servers.with_entry("cellwall", {"command": "x"})
        except BadInput:
            continue
