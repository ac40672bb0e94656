"""A record has one spelling, says where it stands, and nothing else passes for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit import records
from cellwall.audit.encoding import cut_text, encode_body
from cellwall.audit.records import (
    GENESIS,
    MAX_RECORD_BYTES,
    BadRecord,
    IncompleteRecord,
    RecordLink,
    parse_link,
    parse_record,
    record_line,
    tail_fields,
)

MAX = 64
TIME = "2026-01-02T03:04:05.000006Z"


def canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def fields(**changes):
    return {
        "action_id": "act_1",
        "id": "evt_1",
        "interface": "sdk",
        "kind": "intent",
        "principal": "ann",
        "session_id": "sbx_1",
    } | changes


def read_indexed_line(
    body: str = '{"a":1}', *, seq: int = 1, prev: str = GENESIS, **changes
) -> bytes:
    return record_line(fields(**changes), body=body, seq=seq, time=TIME, prev=prev)


LINE = read_indexed_line()

texts = st.text(st.characters(codec=None) | st.characters(categories=["Cs"]), max_size=100)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=100)
bodies = st.dictionaries(
    texts,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    ),
    max_size=6,
)


@given(bodies, texts, texts, texts, st.integers(1, 10**17))
def test_record_is_canonical_and_reads_back(body, principal, action_id, session_id, seq):
    named = {
        "principal": cut_text(principal, max_bytes=MAX),
        "action_id": cut_text(action_id, max_bytes=MAX),
        "session_id": cut_text(session_id, max_bytes=MAX),
    }
    encoded = encode_body(body, max_field_bytes=MAX)
    line = read_indexed_line(encoded, seq=seq, **named)
    whole = fields(**named) | {
        "body": json.loads(encoded),
        "prev": GENESIS,
        "seq": seq,
        "time": TIME,
        "v": 2,
    }
    assert line == canonical(whole)
    assert parse_record(line) == whole
    assert parse_link(line) == RecordLink(b"intent", GENESIS.encode(), seq)
    told = tail_fields(line)
    assert [json.loads(b'"' + each + b'"') for each in (told.principal, told.session_id)] == [
        named["principal"],
        named["session_id"],
    ]


def test_place_is_not_faked_by_what_a_payload_says():
    trap = '},"id":"evt_0","interface":"x","kind":"seal","prev":"' + "f" * 64
    trap += '","principal":"mallory","seq":99,"session_id":"","time":"2020","v":2}'
    for line in (
        read_indexed_line(encode_body({"a": trap, trap: 1}, max_field_bytes=4096), seq=7),
        read_indexed_line(seq=7, principal=trap[:200], session_id=trap[:200], action_id=trap[:200]),
    ):
        assert parse_link(line) == RecordLink(b"intent", GENESIS.encode(), 7)
        assert parse_record(line)["seq"] == 7


@given(st.integers(0, len(LINE) - 1), st.integers(0, 255))
def test_changed_byte_is_another_record_or_none(position, byte):
    changed = LINE[:position] + bytes([byte]) + LINE[position + 1 :]
    try:
        record = parse_record(changed)
    except BadRecord:
        return
    assert (record == parse_record(LINE)) is (changed == LINE)


@pytest.mark.requirement("RED-2")
@given(
    st.binary() | st.binary(min_size=1).map(lambda data: LINE + data) | st.text().map(str.encode)
)
def test_foreign_bytes_are_refused(data):
    for read in (parse_record, parse_link, tail_fields):
        with pytest.raises(BadRecord):
            read(data)


@pytest.mark.parametrize("end", range(len(LINE)))
def test_torn_record_is_not_whole(end):
    for read in (parse_record, parse_link):
        with pytest.raises(IncompleteRecord):
            read(LINE[:end])


def respelled(**changes) -> bytes:
    return canonical(json.loads(LINE) | changes)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{}", "it does not have the fields of a record"),
        (b"[]", "it does not have the fields of a record"),
        (b"", "it is not JSON"),
        (b"\0" * 300, "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (LINE.replace(b'{"a":1}', b'{"a":NaN}'), "it is not JSON"),
        (LINE.replace(b"ann", b"\xff"), "it is not JSON"),
        (b" " * (MAX_RECORD_BYTES + 1), "it is longer than any record"),
        (respelled(v=1), "it is of an unknown version"),
        (respelled(v=3), "its body is not a sealed one"),
        (respelled(v=4), "it is of an unknown version"),
        (respelled(v=2.0), "a field is not of its type"),
        (respelled(seq="1"), "a field is not of its type"),
        (respelled(seq=True), "a field is not of its type"),
        (respelled(kind=["intent"]), "a field is not of its type"),
        (respelled(body=[]), "a field is not of its type"),
        (respelled(more=1), "it does not have the fields of a record"),
        (LINE.replace(b'{"a":1}', b'{"a":1e999}'), "its spelling was altered"),
        (LINE.replace(b'{"a":1}', b'{"a": 1}'), "its spelling was altered"),
        (LINE.replace(b'{"a":1}', b'{"a":2,"a":1}'), "its spelling was altered"),
        (LINE.replace(b'{"a":1}', b'{"b":1,"a":1}'), "its spelling was altered"),
        (LINE.replace(b"ann", b"\\u0061nn"), "its spelling was altered"),
        (LINE.replace(b'"v":2}', b'"v":2,"seq":2}'), "its spelling was altered"),
        (LINE + b" ", "its spelling was altered"),
    ],
)
def test_bad_line_says_what_is_wrong(line, reason):
    with pytest.raises(BadRecord) as caught:
        parse_record(line)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace(b'"seq":1', b'"seq":01'),
        LINE.replace(b'"seq":1', b'"seq":0'),
        LINE.replace(b'"seq":1', b'"seq":-1'),
        LINE.replace(b'"seq":1', b'"seq":1.0'),
        LINE.replace(b'"seq":1', b'"seq":' + b"9" * 30),
        LINE.replace(b'"v":2', b'"v":4'),
        LINE.replace(GENESIS.encode(), GENESIS.encode()[:-1]),
        LINE.replace(GENESIS.encode(), b"F" * 64),
        LINE.replace(b'"kind":"intent"', b'"kind":"INTENT"'),
        LINE.replace(b'{"action_id"', b'{"Action_id"'),
        b'{"action_id":"' + b"x" * MAX_RECORD_BYTES + LINE[14:],
    ],
)
def test_line_without_a_place_has_no_link(line):
    with pytest.raises(BadRecord):
        parse_link(line)


def test_looking_for_the_place_takes_no_time_with_hostile_lines():
    """What a regular expression could go back and forth on; pytest's timeout is the judge."""
    for filler in (b'\\"', b'},"id":"evt_', b'},"id":"evt_1","interface":"', b"\\" * 3):
        line = b'{"action_id":"' + filler * (MAX_RECORD_BYTES // len(filler) - 20)
        with pytest.raises(BadRecord):
            parse_link(line)


def test_version_is_told_in_every_record():
    assert (records.VERSION, json.loads(LINE)["v"]) == (2, 2)
