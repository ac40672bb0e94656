"""Sealing, linking and bounding of records, as pure functions."""

from __future__ import annotations

import json
from enum import StrEnum
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.audit import chain

MAX = 64


def canonical(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fields(**changes):
    return {
        "action_id": "act_1",
        "id": "evt_1",
        "interface": "sdk",
        "kind": "intent",
        "prev": chain.GENESIS,
        "principal": "ann",
        "seq": 1,
        "time": "2026-01-02T03:04:05.000006Z",
    } | changes


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def bounded(body, max_field_bytes=MAX):
    return json.loads(chain.encode_body(body, max_field_bytes=max_field_bytes))


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


@given(bodies, texts, texts, st.integers(1, 2**70))
def test_sealed_record_is_canonical_and_reads_back(body, principal, action_id, seq):
    encoded = chain.encode_body(body, max_field_bytes=MAX)
    plain = fields(
        seq=seq,
        principal=chain.cut_text(principal, max_bytes=MAX),
        action_id=chain.cut_text(action_id, max_bytes=MAX),
    )
    line = chain.seal(plain, body=encoded)
    without_hash = plain | {"v": 1, "body": json.loads(encoded)}
    whole = without_hash | {"hash": digest(canonical(without_hash))}
    assert line == canonical(whole).encode("ascii")
    assert chain.parse(line) == whole
    assert chain.follow(line, seq=seq, prev=chain.GENESIS) == whole


@given(bodies)
def test_encoded_body_is_strict_unicode_json(body):
    def refuse(name):
        raise AssertionError(name)

    value = json.loads(chain.encode_body(body, max_field_bytes=MAX), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")


plain_texts = st.text(max_size=MAX // 4)  # at most MAX bytes, no surrogates
plain_bodies = st.dictionaries(
    plain_texts,
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_texts
    | st.lists(plain_texts, max_size=5),
    max_size=6,
)


@given(plain_bodies)
def test_body_within_its_bounds_is_kept_whole(body):
    assert bounded(body) == body


@given(st.text(min_size=MAX + 1))
def test_long_text_keeps_its_start_and_says_length_and_digest(text):
    data = text.encode()
    kept = data[:MAX].decode(errors="ignore")
    marker = f"[cut: {len(data)} bytes, sha256 {digest(text)}]"
    assert bounded({"a": [text]}) == {"a": [kept + marker]}


@given(texts)
def test_only_cut_texts_are_longer_than_the_bound(text):
    written = chain.cut_text(text, max_bytes=MAX)
    was_cut = len(text.encode("utf-8", "backslashreplace")) > MAX
    assert (len(written.encode()) > MAX) is was_cut


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("\ud800x", "\\ud800x"),
        ("\ud83d\ude00", "\\ud83d\\ude00"),
        ("\U0001f600", "\U0001f600"),
        ("\0\n", "\0\n"),
        (b"\xff\x00", {"base64": "/wA="}),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Colour.RED, "red"),
        ((1, 2), [1, 2]),
        (object(), "[cut: object]"),
        ({1, 2}, "[cut: set]"),
    ],
)
def test_values_json_cannot_hold_are_made_safe(value, written):
    assert bounded({"a": value}) == {"a": written}


def test_long_binary_keeps_its_start_and_says_length_and_digest():
    data = bytes(range(256))
    (written,) = bounded({"a": data})["a"].values()
    marker = f"[cut: 256 bytes, sha256 {sha256(data).hexdigest()}]"
    assert written == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4v" + marker


def test_huge_integer_is_bounded():
    number = 1 << 100_000
    assert bounded({"a": number}) == {"a": chain.cut_text(hex(number), max_bytes=MAX)}


def test_deep_and_circular_bodies_are_cut():
    loop = {}
    loop["me"] = loop
    depth, value = 0, bounded(loop)
    while isinstance(value, dict):
        depth, value = depth + 1, value["me"]
    assert (depth, value) == (16, "[cut: dict]")


def test_too_many_entries_are_counted_not_kept():
    kept = bounded({"a": list(range(10_000))})["a"]
    assert kept == [*range(4095), "[cut: 5905 entries]"]


WORST = "\x01" * chain.MAX_FIELD_BYTES  # six characters each once escaped


@pytest.mark.parametrize(
    "body",
    [
        {"a": [WORST] * 1000},
        {WORST + str(n): WORST + str(n) for n in range(1000)},
        {"a" * 127 * 1024: WORST, "b" + WORST: WORST},
        {str(n): "z" * 8192 for n in range(15)} | {WORST: WORST},
        {"a": [[[[[]]]]] * 5000},
        {str(n): "\U0001f600" * 3000 for n in range(1000)},
        {"a": [b"\xff" * 10_000] * 1000},
    ],
)
def test_no_body_bursts_a_record(body):
    encoded = chain.encode_body(body, max_field_bytes=chain.MAX_FIELD_BYTES)
    name = chain.cut_text(WORST, max_bytes=chain.MAX_NAME_BYTES)
    line = chain.seal(fields(action_id=name, principal=name, interface=name), body=encoded)
    assert len(line) < chain.MAX_RECORD_BYTES
    assert chain.parse(line)["principal"] == name


def test_padding_does_not_hide_the_start_of_an_action():
    body = {"argv": ["curl", "evil.example", *["x" * 4096] * 1000]}
    assert bounded(body, 4096)["argv"][:2] == ["curl", "evil.example"]


LINE = chain.seal(fields(), body='{"a":1}')


@given(st.integers(0, len(LINE) - 1), st.integers(0, 255))
def test_any_changed_byte_is_found(position, byte):
    changed = LINE[:position] + bytes([byte]) + LINE[position + 1 :]
    if changed == LINE:
        assert chain.parse(changed)
        return
    with pytest.raises(chain.BadRecord):
        chain.parse(changed)


@given(st.binary() | st.binary().map(lambda data: LINE + data) | st.text().map(str.encode))
def test_foreign_bytes_are_refused(data):
    if data != LINE:
        with pytest.raises(chain.BadRecord):
            chain.parse(data)


def resealed(**changes) -> bytes:
    """What somebody would forge who knows how a hash is computed."""
    record = fields() | {"v": 1, "body": {}} | changes
    return canonical(record | {"hash": digest(canonical(record))}).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{}", "it does not have the fields of a record"),
        (b"[]", "it does not have the fields of a record"),
        (b"", "it is not JSON"),
        (b"\0" * 300, "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b" " * (chain.MAX_RECORD_BYTES + 1), "it is longer than any record"),
        (resealed(v=2), "it is of an unknown version"),
        (resealed(v=True), "a field is not of its type"),
        (resealed(seq="1"), "a field is not of its type"),
        (resealed(kind=["intent"]), "a field is not of its type"),
        (resealed(kind="party"), "it is of an unknown kind"),
        (resealed(more=1), "it does not have the fields of a record"),
        (LINE.replace(b'{"a":1}', b'{"a":1e999}'), "its spelling was altered"),
        (LINE.replace(b'{"a":1}', b'{"a":2}'), "its content does not match its hash"),
        (LINE.replace(b'{"a":1}', b'{"a": 1}'), "its spelling was altered"),
        (LINE.replace(b'{"a":1}', b'{"a":2,"a":1}'), "its spelling was altered"),
        (LINE + b" ", "its spelling was altered"),
    ],
)
def test_bad_line_says_what_is_wrong(line, reason):
    with pytest.raises(chain.BadRecord) as caught:
        chain.parse(line)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("seq", "prev", "reason"),
    [
        (2, chain.GENESIS, "it says it is record 1"),
        (1, "f" * 64, "it was chained to another record than the one before it"),
    ],
)
def test_record_out_of_its_place_is_refused(seq, prev, reason):
    with pytest.raises(chain.BadRecord) as caught:
        chain.follow(LINE, seq=seq, prev=prev)
    assert str(caught.value) == reason
