"""settings.json with our hooks and without them; everything else stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.interfaces.hooks import settings_text
from cellwall.interfaces.hooks.agents.registry import AGENTS
from cellwall.interfaces.hooks.command_lines import hook_command
from cellwall.interfaces.hooks.settings_text import is_own_hook

LAYOUT = AGENTS["claude-code"].layout
EVENTS = LAYOUT.events
COMMANDS = dict.fromkeys(EVENTS, "/opt/bin/cellwall hook")
ENTRY = LAYOUT.entry("/opt/bin/cellwall hook")
OTHER = {"type": "command", "command": "/usr/bin/lint --cellwall hook"}


def merged(data: bytes) -> bytes:
    return settings_text.add_hooks(data, LAYOUT, COMMANDS)


def without(data: bytes) -> bytes:
    return settings_text.remove_hooks(data, LAYOUT)


def ours(data: bytes) -> object:
    return settings_text.own_hooks(data, LAYOUT)


def text(value: object, **style: object) -> bytes:
    return json.dumps(value, **style).encode()


def test_into_nothing_both_hooks_are_written_and_block_on_failure():
    told = json.loads(merged(b""))
    assert told == {"hooks": {event: [{"matcher": "*", "hooks": [ENTRY]}] for event in EVENTS}}
    assert ENTRY["onFailure"] == "block"


FILES = {
    "empty object": b"{}",
    "two spaces": b'{\n  "a": 1,\n  "b": [1, 2]\n}\n',
    "tabs": b'{\n\t"z": 1,\n\t"a": {\n\t\t"x": null\n\t}\n}\n',
    "four": b'{\n    "a": 1\n}',
    "CRLF": b'{\r\n  "a": 1\r\n}\r\n',
    "one line": b'{"a": 1, "hooks": {}}',
    "BOM": b'\xef\xbb\xbf{\n  "a": 1\n}\n',
    "umlaut": '{\n  "a": "ü 漢"\n}\n'.encode(),
    "escaped": b'{\n  "a": "\\u00fc"\n}\n',
    "surrogate": b'{\n  "a": "\\ud800"\n}\n',
    "others": json.dumps(
        {
            "permissions": {"allow": ["Bash(ls)"]},
            "hooks": {
                "PreToolUse": [{"matcher": "Bash", "hooks": [OTHER]}],
                "Stop": [{"hooks": [OTHER]}],
            },
            "env": {"A": "1"},
        },
        indent=2,
    ).encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_written_in_the_style_of_the_file_and_comes_out_again(name):
    before = FILES[name]
    after = merged(before)
    assert merged(after) == after
    assert json.loads(without(after).decode("utf-8-sig")) == {
        key: value
        for key, value in json.loads(before.decode("utf-8-sig")).items()
        if value or key != "hooks"
    }
    assert (b"\r\n" in after) == (b"\r\n" in before)
    assert (b"\n\t" in after) == (b"\n\t" in before)
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    lines_before = {line for line in before.replace(b",", b"").splitlines() if b'"a"' in line}
    if b"\n" in before:
        assert lines_before <= set(after.replace(b",", b"").splitlines())


def test_order_and_other_hooks_stay():
    told = json.loads(merged(FILES["others"]))
    assert list(told) == ["permissions", "hooks", "env"]
    assert told["hooks"]["PreToolUse"][0] == {"matcher": "Bash", "hooks": [OTHER]}
    assert told["hooks"]["Stop"] == [{"hooks": [OTHER]}]


def test_an_older_entry_of_ours_is_replaced_where_it_stands():
    old = {"type": "command", "command": "/old/cellwall hook"}
    group = {"matcher": "Bash", "hooks": [OTHER, old]}
    before = text({"hooks": {"PreToolUse": [group, {"hooks": [OTHER]}]}})
    told = json.loads(merged(before))["hooks"]["PreToolUse"]
    assert told == [
        {"matcher": "*", "hooks": [ENTRY]},
        {"matcher": "Bash", "hooks": [OTHER]},
        {"hooks": [OTHER]},
    ]


def test_only_our_own_is_taken_out_of_a_group_with_others():
    before = text({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [ENTRY, OTHER]}]}})
    assert json.loads(without(before)) == {
        "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [OTHER]}]}
    }


@pytest.mark.parametrize(
    "command",
    [
        "cellwall",
        "/bin/cellwall run",
        "/bin/sh -c 'echo cellwall hook'",
        "/bin/python -I -c 'print(1)' hook",
        "echo cellwall hook",
        "'unclosed",
        "",
    ],
)
def test_a_hook_that_starts_something_else_is_not_ours(command):
    assert not is_own_hook({"type": "command", "command": command})


def test_ours_is_known_with_any_path_and_options():
    assert is_own_hook({"type": "command", "command": "'/a b/cellwall' hook --run-inside"})
    assert is_own_hook({"type": "command", "command": "A=1 B='' ./cellwall hook ; touch x"})
    assert is_own_hook({"type": "command", "command": hook_command(environ={}, policy="p.toml")})
    assert not is_own_hook({"type": "prompt", "command": "/bin/cellwall hook"})


BAD = {
    "no JSON": b"{",
    "comments": b'{ // hi\n "a": 1}',
    "trailing comma": b'{"a": 1,}',
    "list": b"[]",
    "not UTF-8": b'{"a": "\xff"}',
    "twice": b'{"hooks": {}, "hooks": {}}',
    "NaN": b'{"a": NaN}',
    "deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "hooks list": b'{"hooks": []}',
    "event object": b'{"hooks": {"PreToolUse": {}}}',
    "group text": b'{"hooks": {"PreToolUse": ["x"]}}',
    "group without": b'{"hooks": {"PostToolUse": [{"matcher": "x"}]}}',
    "many groups": b'{"hooks": {"PreToolUse": [%s]}}' % b",".join([b'{"hooks": []}'] * 1001),
    "hook text": b'{"hooks": {"PostToolUse": [{"hooks": ["x"]}]}}',
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_are_not_understood_are_not_written_over(name):
    for work in (lambda data: merged(data), without, ours):
        with pytest.raises(BadInput, match="nothing was changed"):
            work(BAD[name])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(max_size=6).filter(lambda key: key != "hooks"), _json, max_size=5),
    st.sampled_from([None, 1, 2, 4, "\t"]),
)
def test_whatever_else_is_in_the_file_survives_both_ways(value, indent):
    before = json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        before.decode()
    except UnicodeDecodeError:
        return
    after = merged(before)
    assert {k: v for k, v in json.loads(after).items() if k != "hooks"} == value
    assert json.loads(without(after)) == value


SPELLED = (
    b'{"a": 1.10, "b": 1e999, "c": -0, "d": 1E5, "e": "\\ud800\xc3\xa9\\u0041",'
    b' "hooks" :  {"Stop": [ {"n": 2.50} ], "PreToolUse": [{"matcher": "B",'
    b' "hooks":[{"type": "x", "timeout": 1.10}]} ]}, "f":[1.0 ,2]}'
)


def test_what_is_not_ours_keeps_its_very_characters():
    after = merged(SPELLED)
    after.decode("utf-8")
    whole = json.dumps({"matcher": "*", "hooks": [ENTRY]}).encode()
    assert after == SPELLED.replace(
        b"1.10}]} ]}", b'1.10}]}, %s ], "PostToolUse": [%s]}' % (whole, whole)
    )
    assert json.loads(without(after)) == json.loads(SPELLED)
    for spelled in (
        b"1.10, ",
        b"1e999",
        b"1E5",
        b'"\\ud800\xc3\xa9',
        b'"timeout": 1.10',
        b"[1.0 ,2]",
    ):
        assert spelled in without(after)


def test_numbers_beside_an_entry_of_ours_keep_their_characters_when_it_goes():
    ours_old = b'{"type": "command", "command": "/x/cellwall hook"}'
    group = b'{"matcher": "*", "hooks": [{"type": "x", "n": 1.10}, %s]}' % ours_old
    before = b'{"hooks": {"PreToolUse": [%s, {"hooks": [], "n": 2.50}]}}' % group
    for after in (without(before), merged(before)):
        assert b'{"type": "x", "n": 1.10}' in after
        assert b'{"hooks": [], "n": 2.50}' in after
        assert ours_old not in after


def test_a_path_that_is_no_text_is_not_written():
    with pytest.raises(BadInput, match="nothing was changed"):
        odd = dict.fromkeys(EVENTS, "/\udcff/cellwall hook")
        settings_text.add_hooks(b"{}", LAYOUT, odd)
