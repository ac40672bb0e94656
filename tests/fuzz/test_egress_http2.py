"""Fuzzes the frames and heads of HTTP/2: read in one way, or refused by our error.

What the gate lets through is held against a plain reader of frames; what is taken for a request
against a grammar that shares no code with ours.
"""

from __future__ import annotations

import re

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import H2Error
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import EgressRefused
from cellwall.egress.protocols.h2_frames import (
    PREFACE,
    FrameCostBudget,
    FrameGate,
    GoAway,
    count_fields,
)
from cellwall.egress.protocols.http1_framing import BadMessage
from cellwall.egress.protocols.http_heads import (
    end_to_end_h2_headers,
    read_h2_request,
    read_h2_response,
    read_h2_trailers,
)
from http2 import frame

FUZZ = settings(max_examples=250, deadline=None, derandomize=True)

GOOD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"api.example.com"),
    (b":path", b"/v1"),
]
BLOCK = bytes(Encoder().encode(GOOD))
FRAMES = (
    frame(4, 0, 0),
    frame(4, 1, 0),
    frame(1, 5, 1, BLOCK),
    frame(1, 4, 3, BLOCK),
    frame(1, 0, 5, BLOCK[:3]),
    frame(9, 4, 5, BLOCK[3:]),
    frame(0, 1, 3, b"body"),
    frame(0, 8, 3, b"\x02bo\0\0"),
    frame(2, 0, 3, bytes(5)),
    frame(3, 0, 3, bytes(4)),
    frame(5, 4, 1, bytes(4) + BLOCK),
    frame(6, 0, 0, bytes(8)),
    frame(7, 0, 0, bytes(8)),
    frame(8, 0, 0, b"\0\0\1\0"),
    frame(0x0A, 0, 0, b"\0\0x"),
    frame(0x10, 0, 0, bytes(4) + b"u=1"),
)


@st.composite
def talks(draw: st.DrawFn) -> bytes:
    """Frames in any order, some of them bent."""
    said = [PREFACE, FRAMES[0]] if draw(st.integers(0, 9)) else []
    for _ in range(draw(st.integers(0, 12))):
        data = bytearray(draw(st.sampled_from(FRAMES)))
        if draw(st.integers(0, 3)) == 0:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        said.append(bytes(data))
    return b"".join(said) + draw(st.binary(max_size=6))


def plain(data: bytes) -> list[bytes]:
    """Whole frames, by nothing but their lengths."""
    found = []
    while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
        size = 9 + int.from_bytes(data[:3], "big")
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.requirement("NET-2", "RED-2")
@FUZZ
@given(talks(), st.integers(1, 40))
def test_frames_pass_whole_and_in_order_or_are_refused(data: bytes, step: int) -> None:
    gate = FrameGate(
        is_client=True, frame_costs=FrameCostBudget(lambda: 0.0), waste=FrameCostBudget(lambda: 0.0)
    )
    h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    h2.initiate_connection()
    passed, goodbyes = b"", 0
    try:
        for start in range(0, len(data), step):
            gate.feed(data[start : start + step])
            for piece in gate.take():
                if isinstance(piece, GoAway):
                    goodbyes += 1
                    continue
                passed += piece
                for event in h2.receive_data(piece):
                    if isinstance(event, RequestReceived):
                        _read(list(event.headers))
    except (BadMessage, H2Error):
        pass
    frames = plain(data.removeprefix(PREFACE))
    kept = [each for each in frames if each[3] not in (2, 7) and each[3] <= 9]
    assert b"".join(kept).startswith(passed.removeprefix(PREFACE))
    assert goodbyes <= sum(each[3] == 7 for each in frames)
    assert not any(each[3] == 5 for each in plain(passed.removeprefix(PREFACE)))


def _read(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        request = read_h2_request(headers)
    except EgressRefused:
        return
    said = dict(headers)
    assert (request.method.encode(), request.path.encode()) == (said[b":method"], said[b":path"])


NAMES = st.sampled_from(
    [name for name, _ in GOOD]
    + [b":status", b":protocol", b"host", b"x-a", b"X-A", b"x a", b"", b"cookie", b"te", b"connection"]
    + [b"content-length", b"content_length", b"transfer-encoding", b"x-original-url", b"x\r\ny", b":"]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([b"GET", b"https", b"api.example.com", b"/v1", b"CONNECT", b"200", b"5", b""]),
    st.sampled_from([b"evil.example.net", b"/v1\r\nx: y", b"1\0", b" 1", b"trailers", b"chunked"]),
    st.binary(max_size=12),
)
HEADS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


@pytest.mark.requirement("NET-2")
@FUZZ
@given(HEADS, HEADS, st.booleans())
def test_head_has_one_meaning_or_is_refused(
    before: list[tuple[bytes, bytes]], after: list[tuple[bytes, bytes]], is_good: bool
) -> None:
    headers = [*(before[:1] if is_good else before), *GOOD, *after]
    try:
        request = read_h2_request(headers)
    except EgressRefused:
        return
    pseudo = [name for name, _ in headers if name[:1] == b":"]
    assert sorted(pseudo) == sorted(name for name, _ in GOOD)
    assert re.fullmatch(r"[A-Z][A-Z0-9-]*", request.method)
    assert request.method not in ("CONNECT", "TRACE")
    assert re.fullmatch(r"/[!-~]*", request.path)
    assert "#" not in request.path
    for name, value in (*request.headers, *end_to_end_h2_headers(request.headers)):
        assert re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9a-z]+", name)
        assert not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$", value)
        assert name not in (b"connection", b"transfer-encoding", b"upgrade", b"host")


@pytest.mark.requirement("NET-2")
@FUZZ
@given(HEADS)
def test_answer_and_its_trailers_have_one_meaning_or_are_refused(
    after: list[tuple[bytes, bytes]],
) -> None:
    for is_answer in (True, False):
        try:
            if is_answer:
                _, fields = read_h2_response([(b":status", b"200"), *after])
            else:
                fields = read_h2_trailers(after)
        except EgressRefused:
            continue
        for name, value in fields:
            assert re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9a-z]+", name)
            assert not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value)


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b":method", b"x-a", b"cookie"]) | st.binary(max_size=200),
            st.sampled_from([b"GET", b""]) | st.binary(max_size=200),
            st.booleans(),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_fields_are_counted_as_their_reader_finds_them(
    headers: list[tuple[bytes, bytes, bool]], huffman: bool
) -> None:
    encoder, decoder = Encoder(), Decoder(max_header_list_size=1 << 20)
    for _ in range(2):  # the second time most of them are known to both sides
        block = bytes(encoder.encode(headers, huffman=huffman))
        assert count_fields(block, 1000) == len(decoder.decode(block, raw=True)) == len(headers)
        assert count_fields(block, 5) == min(len(headers), 6)


@FUZZ
@given(st.binary(max_size=400))
def test_any_block_is_counted(block: bytes) -> None:
    try:
        found = len(Decoder(max_header_list_size=1 << 20).decode(block, raw=True))
    except HPACKError:
        found = 0
    assert found <= count_fields(block, 1000) <= len(block)
