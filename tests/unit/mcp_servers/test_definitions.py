"""Definitions of tools: one canonical text, bounds, and the comparison with the pins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from cellwall.mcp_servers.definitions import (
    MAX_DEFINITION_BYTES,
    MAX_TOOLS,
    BadDefinition,
    Definition,
    ToolSet,
    canonical,
    texts_of,
    tool_set,
)
from cellwall.mcp_servers.pins import Pins, accept, compare, reject, usable
from cellwall.mcp_servers.results import result_of

pytestmark = pytest.mark.requirement("SRV-7")

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def tool(name: str = "say", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def shown(*tools: dict[str, Any], **identity: Any) -> ToolSet:
    return tool_set({"name": "raw", **identity}, tools)


def pinned(seen: ToolSet) -> Pins:
    return accept(Pins(), seen, frozenset(seen.tools), despite_findings=frozenset())


@given(st.dictionaries(st.text(), _JSON, max_size=5))
def test_digest_is_that_of_the_value_and_of_nothing_else(fields: dict[str, Any]) -> None:
    again = json.loads(json.dumps(dict(reversed(fields.items()))))
    assert Definition.of(fields).sha256 == Definition.of(again).sha256
    assert Definition.of({**fields, "one more": 0}).sha256 != Definition.of(fields).sha256


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), ("1", 1), ([], {}), (None, "")])
def test_values_of_other_types_differ(one: Any, other: Any) -> None:
    assert canonical({"a": one}) != canonical({"a": other})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: 2}.keys(), [10**5000], b"x"], ids=type
)
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(BadDefinition):
        Definition.of({"a": value})


def test_bounds() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(BadDefinition, match="deep"):
        Definition.of({"a": deep})
    with pytest.raises(BadDefinition, match="bytes"):
        Definition.of({"a": "x" * MAX_DEFINITION_BYTES})
    with pytest.raises(BadDefinition, match="values"):
        Definition.of({"a": [0] * 2001})
    with pytest.raises(BadDefinition, match="more than 256 tools"):
        shown(*(tool(f"t{number}") for number in range(MAX_TOOLS + 1)))
    with pytest.raises(BadDefinition, match="together"):
        shown(*(tool(f"t{number}", description="x" * 60_000) for number in range(20)))


@pytest.mark.parametrize(
    "schema", [None, {}, {"type": "string"}, {"type": "object", "properties": 1}, []]
)
def test_schema_must_describe_an_object(schema: Any) -> None:
    found = tool_set({}, [{"name": "odd", "inputSchema": schema}, tool()])
    assert (set(found.tools), set(found.refused)) == ({"say"}, {"odd"})


def test_two_tools_of_one_name_are_both_refused() -> None:
    found = shown(tool("a"), tool("a", description="x"), tool("a"), tool("b"))
    assert (set(found.tools), set(found.refused)) == ({"b"}, {"a"})


def test_states() -> None:
    pins = pinned(shown(tool("same"), tool("changes"), tool("goes"), tool("bad")))
    before = shown(tool("same"), tool("changes"), tool("goes"), tool("bad"))
    pins = reject(pins, before, frozenset({"bad"}))
    now = shown(tool("same"), tool("changes", title="!"), tool("bad"), tool("comes"), tool("a b"))
    assert {each.name: each.state for each in compare(pins, now)} == {
        "": "accepted",
        "same": "accepted",
        "changes": "changed",
        "goes": "gone",
        "bad": "rejected",
        "comes": "new",
        "a b": "refused",
    }
    assert usable(pins, now) == {"same"}
    assert usable(pins, shown(tool("same"), version="2")) == frozenset()
    assert usable(Pins(), now) == frozenset()


def test_rejected_definition_that_changes_waits_again() -> None:
    seen = shown(tool())
    pins = reject(pinned(seen), seen, frozenset({"say"}))
    (_, change) = compare(pins, shown(tool(title="new")))
    assert change.state == "new"


def test_diff_shows_invisible_characters() -> None:
    pins = pinned(shown(tool(description="Echo.")))
    (_, change) = compare(pins, shown(tool(description="Echo.\u200b\U000e0041")))
    assert '- "description": "Echo.",' in change.diff()
    assert r'+ "description": "Echo.\u200b\udb40\udc41",' in change.diff()


def test_diff_leaves_nothing_out() -> None:
    last = {"type": "object", "properties": {f"p{n:04}": {"type": "string"} for n in range(900)}}
    (_, change) = compare(Pins(), tool_set({}, [{"name": "say", "inputSchema": last}]))
    assert '"p0899": {' in change.diff()
    assert "more lines" not in change.diff()


def test_every_text_of_a_definition_is_found() -> None:
    fields = {"a": "1", "b": [{"c": "2"}, "3"], "d": {"e": {"f": 4}}}
    found = dict(texts_of(fields))
    assert {"1", "2", "3", "a", "b", "c", "d", "e", "f"} == set(found.values())
    assert found["b[0].c"] == "2"


def test_result_keeps_texts_and_images_and_says_what_is_left_out() -> None:
    answer = CallToolResult(
        content=[
            TextContent(text="one"),
            ImageContent(data="aGk=", mime_type="image/png"),
            ImageContent(data="aGk=", mime_type="image/svg+xml"),
            AudioContent(data="aGk=", mime_type="audio/wav"),
            ResourceLink(name="two", uri="file:///etc/passwd"),
            EmbeddedResource(resource=TextResourceContents(uri="mem://x", text="three")),
        ],
        structured_content={"four": 4},
        is_error=True,
    )
    result = result_of(answer)
    assert result.text == 'one\ntwo: file:///etc/passwd\nmem://x\nthree\n{"four": 4}'
    assert result.results == ({"png": "aGk="},)
    assert result.exit_code == 1
    assert [each.message for each in result.findings] == ["left out of the result: image, audio"]


@pytest.mark.parametrize("text", ['{"x": 1}', ' {"x":1}'])
def test_structured_content_that_repeats_the_text_is_not_shown_twice(text: str) -> None:
    answer = CallToolResult(content=[TextContent(text=text)], structured_content={"x": 1})
    assert result_of(answer).text == text
    wrapped = CallToolResult(content=[TextContent(text="a")], structured_content={"result": "a"})
    assert result_of(wrapped).text == "a"
