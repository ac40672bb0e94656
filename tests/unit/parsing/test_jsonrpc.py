"""Messages of an untrusted peer are read as the SDK reads them (SRV-7)."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, jsonrpc_message_adapter

from cellwall.parsing.jsonrpc import Lines, parse_message

# Each key with values of the right and of other kinds; None: without the key.
KEYS = {
    "jsonrpc": ('"2.0"', '"1.0"', None),
    "id": ("1", '"a"', "1.5", "null", None),
    "method": ('"m"', "1", None),
    "params": ("{}", '{"result": 1}', "[]", None),
    "result": ("{}", '{"method": "x"}', "1", None),
    "error": ('{"code": 1, "message": "x"}', "{}", None),
    "r\\u0065sult": ("{}", None),
    "\\u0065rror": ('{"code": 1, "message": "x"}', None),
}


@pytest.mark.slow
@pytest.mark.requirement("SRV-7")
def test_a_message_with_any_keys_is_of_the_kind_that_the_sdk_finds() -> None:
    kinds: set[str] = set()
    for values in itertools.product(*KEYS.values()):
        pairs = zip(KEYS, values, strict=True)
        text = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs if value) + "}"
        try:
            wanted = jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValueError:
            wanted = None
        found = parse_message(text.encode())
        if isinstance(found, SessionMessage):
            assert found.message == wanted, text
            kinds.add(type(wanted).__name__)
        else:  # an error, where the SDK reads nothing, or an id that it would ignore
            assert wanted is None or '"id"' in text, text
    assert kinds == {"JSONRPCRequest", "JSONRPCNotification", "JSONRPCResponse", "JSONRPCError"}


@pytest.mark.requirement("SRV-7")
def test_a_line_in_tiny_pieces_takes_little_more_memory_than_its_bytes() -> None:
    sizes: list[int] = []
    for piece in (b"ab", b"ab" * 20_000):
        lines = Lines(1024 * 1024)
        tracemalloc.start()
        try:
            for _ in range(40_000 // len(piece)):
                lines.feed(bytes(bytearray(piece)))
            sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert lines.feed(b"\n") == [b"ab" * 20_000]
    assert sizes[0] < 3 * sizes[1]


@pytest.mark.requirement("SRV-7")
@pytest.mark.parametrize(
    "number", ["1e999", "-1E+0400", "NaN", "Infinity", f"1{'0' * 250}e99", f"1{'0' * 400}.0"]
)
def test_a_number_that_is_written_otherwise_than_read_is_refused(number: str) -> None:
    for key in ("params", "result"):
        kind = '"method": "m", ' if key == "params" else ""
        line = f'{{"id": 1, "jsonrpc": "2.0", {kind}"{key}": {{"a": ["1e999", {{"b": %s}}]}}}}'
        found = parse_message((line % number).encode())
        assert isinstance(found, JSONRPCError)
        assert (found.id, "too large" in found.error.message) == (1, True)
        # The control: a text may look like such a number, and large numbers are read.
        for usual in (f'"{number}"', "1e300", "1" * 300):
            assert isinstance(parse_message((line % usual).encode()), SessionMessage)
