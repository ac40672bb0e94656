"""Frames: whatever the other end sends, a reader yields whole messages or says `BadFrame`."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.frames import (
    BadFrame,
    Frame,
    FrameReader,
    FrameTooLong,
    ValueBudget,
    _counts,
    encode,
)

MOST = 4096
LEAF = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUE = st.recursive(
    LEAF.filter(lambda value: value not in (float("inf"), float("-inf"))) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MESSAGE = st.dictionaries(TEXT, VALUE, max_size=5)
FRAME = st.builds(Frame, MESSAGE, st.binary(max_size=200))


def reader(**changes) -> FrameReader:
    return FrameReader(**{"max_frame_bytes": 1 << 20, **changes})


def raw(text: bytes, blob: bytes = b"") -> bytes:
    return struct.pack(">II", len(text), len(blob)) + text + blob


def read_all(data: bytes, **changes) -> list[Frame]:
    return list(reader(**changes).feed(data))


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


@pytest.mark.requirement("RED-2")
@given(st.data(), st.lists(FRAME, max_size=5))
def test_what_was_encoded_comes_back_however_it_is_cut(data, frames):
    sent = b"".join(encode(frame.message, frame.blob) for frame in frames)
    end = reader()
    found = [frame for chunk in data.draw(chunked(sent)) for frame in end.feed(chunk)]
    assert found == frames
    assert end.is_between_frames


@pytest.mark.requirement("RED-2")
@given(FRAME)
def test_a_byte_at_a_time_is_enough(frame):
    end, data = reader(), encode(frame.message, frame.blob)
    early = [found for byte in data[:-1] for found in end.feed(bytes([byte]))]
    assert (early, end.is_between_frames) == ([], False)
    assert list(end.feed(data[-1:])) == [frame]


def _feed(end: FrameReader, chunks: list[bytes]) -> list[Frame]:
    found: list[Frame] = []
    try:
        for chunk in chunks:
            found += end.feed(chunk)
    except BadFrame:
        pass  # and nothing else
    return found


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode("ascii")
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError):
        return False
    return True


SMALL = st.integers(0, 40)
ALMOST = st.builds(
    lambda text_bytes, blob_bytes, rest: struct.pack(">II", text_bytes, blob_bytes) + rest,
    SMALL,
    SMALL,
    st.binary(max_size=120),
)
JSONISH = st.text(st.sampled_from('{}[]",:\\ue019-+.dDnulNaI \ud800é'), max_size=40).map(
    lambda text: raw(text.encode("utf-8", "surrogatepass"))
)


@pytest.mark.requirement("RED-2")
@settings(max_examples=400)
@given(st.data(), st.lists(st.binary(max_size=60) | ALMOST | JSONISH, max_size=5), st.booleans())
def test_garbage_is_a_bad_frame_and_nothing_else(data, pieces, has_blobs):
    end = reader(max_frame_bytes=MOST, has_blobs=has_blobs)
    for frame in _feed(end, data.draw(chunked(b"".join(pieces)))):
        assert type(frame.message) is dict
        assert _is_plain(frame.message)
        assert has_blobs or frame.blob == b""


@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b"NaN",
        b"{}{}",
        b"\xff\xfe{}",
        b"{'a': 1}",
        b'{"a": 1',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 60_000,
        b'{"a":' * 60_000,
        b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=range(15),
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(BadFrame):
        read_all(raw(text))


@pytest.mark.requirement("RED-2")
def test_what_json_cannot_carry_on_is_made_harmless():
    text = (
        b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": "\\ud800", "\\udfff": 1, "e": "\xed\xa0\x80"}'
    )
    (frame,) = read_all(raw(text))
    assert frame.message["a"] is frame.message["b"] is frame.message["c"] is None
    assert _is_plain(frame.message)


@pytest.mark.requirement("RED-2")
def test_a_deep_nest_ends_somewhere():
    (frame,) = read_all(raw(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"))
    depth, value = 0, frame.message["a"]
    while value:
        depth, value = depth + 1, value[0]
    assert depth <= 101


@pytest.mark.requirement("RED-2")
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_frame_that_is_too_long_is_refused_by_its_head_alone(text_bytes, blob_bytes):
    head = struct.pack(">II", text_bytes, blob_bytes)
    if 8 + text_bytes + blob_bytes > MOST:
        with pytest.raises(FrameTooLong):
            read_all(head, max_frame_bytes=MOST)
    elif text_bytes + blob_bytes:
        assert read_all(head, max_frame_bytes=MOST) == []


@pytest.mark.parametrize("size", [MOST - 1, MOST, MOST + 1])
def test_the_bound_is_of_the_whole_frame(size):
    text = b"{}"
    data = raw(text, bytes(size - 8 - len(text)))
    if size > MOST:
        with pytest.raises(FrameTooLong):
            read_all(data, max_frame_bytes=MOST)
    else:
        assert read_all(data, max_frame_bytes=MOST) == [Frame({}, data[10:])]


@pytest.mark.requirement("RED-2")
@given(FRAME, st.data())
def test_half_a_frame_is_nothing_yet_and_is_noticed(frame, data):
    whole = encode(frame.message, frame.blob)
    cut = data.draw(st.integers(1, len(whole) - 1))
    end = reader()
    assert list(end.feed(whole[:cut])) == []
    assert not end.is_between_frames
    assert list(end.feed(whole[cut:] + whole[:cut])) == [frame]
    assert not end.is_between_frames


@pytest.mark.requirement("RED-2")
@given(MESSAGE, st.binary(min_size=1, max_size=9))
def test_raw_bytes_are_refused_where_none_are_sent(message, blob):
    assert read_all(encode(message), has_blobs=False) == [Frame(message)]
    with pytest.raises(BadFrame):
        read_all(encode(message, blob), has_blobs=False)
    with pytest.raises(BadFrame):  # already by the head, before the bytes come
        read_all(encode(message, blob)[:8], has_blobs=False)


def test_frames_before_a_bad_one_are_still_read():
    end = reader()
    found = []
    with pytest.raises(BadFrame):
        found.extend(end.feed(encode({"a": 1}) + encode({"b": 2}) + raw(b"nonsense")))
    assert found == [Frame({"a": 1}), Frame({"b": 2})]


@pytest.mark.slow
@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [' + b"{}," * 300_000 + b"{}]}",
        b'{"a": [' + b"[]," * 300_000 + b"[]]}",
        b'{"a": [' + b"1," * 400_000 + b"1]}",
        b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b', "b": [[[[',
    ],
    ids=["objects", "lists", "numbers", "unfinished"],
)
def test_memory_is_bounded_by_the_length_of_a_frame(text):
    end = reader(max_frame_bytes=2 << 20)
    tracemalloc.start()
    try:
        _feed(end, [raw(text)])
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_flood_of_heads_is_not_kept():
    end = reader(max_frame_bytes=MOST)
    data = encode({}, bytes(MOST - 10))
    for _ in range(200):
        assert len(list(end.feed(data))) == 1
    assert len(end._buffer) == 0


@pytest.mark.slow
@pytest.mark.requirement("ISO-13", "GRD-11")
@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ({"done": 1, "value": ["ab"] * 19_000}, True),
        ({"done": 1, "value": [f"{number:x}" for number in range(21_000)]}, False),
        ({"done": 1, "value": {f"{number:x}": 0 for number in range(21_000)}}, False),
        ({"done": 1, "value": list(range(100_000))}, True),
        ({"done": 1, "value": [[]] * 201_000}, False),
        ({"done": 1, "text": '<a class="b">' * 30_000}, True),
        ({"done": 1, "text": "[{,}]" * 100_000}, True),
    ],
)
def test_values_of_a_run_are_counted_before_they_are_made(message, fits) -> None:
    reader = FrameReader(max_frame_bytes=8 << 20, has_blobs=False)
    with suppress(BadFrame):  # the control: without a budget all but one are made
        assert len(list(reader.feed(encode(message)))) == 1
    reader.budget = ValueBudget()
    if fits:
        assert len(list(reader.feed(encode(message)))) == 1
    else:
        with pytest.raises(BadFrame):
            list(reader.feed(encode(message)))


@pytest.mark.slow
def test_the_frames_of_a_run_share_what_it_may_tell() -> None:
    reader = FrameReader(max_frame_bytes=8 << 20, has_blobs=False)
    reader.budget = ValueBudget()
    many = encode({"value": [0] * 199_000})
    assert len(list(reader.feed(many * 4))) == 4
    with pytest.raises(FrameTooLong):
        list(reader.feed(many))
    reader.budget = ValueBudget()
    assert len(list(reader.feed(many))) == 1


def test_a_text_that_never_ends_is_counted_once() -> None:
    """Once, each escaped quote was looked at as the begin of another text: the square of 8 MiB."""
    text = b"[" * 201_000 + b'"' + b'\\"' * 1_000_000
    frame = len(text).to_bytes(4, "big") + bytes(4) + text
    for budget in (None, ValueBudget()):
        reader = FrameReader(max_frame_bytes=8 << 20, has_blobs=False)
        reader.budget = budget
        with pytest.raises(BadFrame):
            list(reader.feed(frame))


@given(VALUE)
def test_counts_are_those_of_the_json(value) -> None:
    def strings(each) -> int:
        match each:
            case str():
                return 1
            case dict():
                return len(each) + sum(map(strings, each.values()))
            case list():
                return sum(map(strings, each))
            case _:
                return 0

    text = json.dumps({"\\": value, '\\"': '\\\\"'}).encode()
    assert _counts(text)[0] == strings(value) + 3
    ValueBudget().spend(text)
