"""Secrets in any text, and however a stream of it is cut (GRD-5)."""

from __future__ import annotations

import base64
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cellwall.core.errors import ConfigError
from cellwall.core.types import Json
from cellwall.guard.redact import Redactor, load_gitleaks, shipped
from cellwall.parsing.credentials.known_forms import forms

KNOWN = {
    "HORSE": b"hunter2-correct-horse",
    "TOKEN": b"tok/5f9c+2e81d7==",
    "SHORT": b"qwe-12",
    "WORD": b"secret",
    "MARK": b"github-token",
    "LONG": bytes(Random(7).choices(range(33, 127), k=700)),
    "LONGER": b"hunter2-correct-horse-Zx81kdQ02",
    "BEFORE": b"xxxxhunter2-cor",
    "AFTER": b"se-Zx81kdQ02--x",
}
ENCODED = {name: value for name, value in KNOWN.items() if len(value) >= 12}
BODY = base64.encodebytes(Random(5).randbytes(500))
LONG_VALUE = bytes(Random(3).choices(b"abcdefABCDEF0123456789", k=1500))

PLAIN = Redactor()
KNOWING = Redactor(known=lambda: KNOWN)

FRAGMENTS = st.one_of(
    st.sampled_from([text.encode() for rule in shipped().shapes for text in rule.match]),
    st.sampled_from([text.encode() for rule in shipped().shapes for text in rule.not_match]),
    st.sampled_from(
        [
            b"token=",
            b"key: ",
            b'"password": "',
            b"acme SECRET ",
            b"9f8e7d6c5b4a39281706f5e4d3c2b1a0",
            b"Zk3vQ8mT1xLr6WbY0pNs",
            b"token=" + LONG_VALUE,
            b'password="' + LONG_VALUE[:100] + b'\\"' + LONG_VALUE + b'"',
            b"-----BEGIN RSA PRIVATE KEY-----\n" + BODY + b"-----END RSA PRIVATE KEY-----\n",
            b"-----BEGIN PRIVATE KEY-----\n" + BODY,
            b"-----END ",
            b"eyJ" + LONG_VALUE + b"." + LONG_VALUE + b".x",
            b"hfsecret_token_abcdefghij234567klmnopqrst",
            b"[redacted:",
            b"[redacted:secret HORSE]",
            b"[redacted:github-token]",
            b"\\",
            b'"',
            b"\n",
            b" ",
            b"-",
            b"://a:b",
            b"\x1b[31m",
            b"\x1b[0m",
            b"\x1b[01;31m\x1b[K",
            b"\\u001b[1m",
            b"\x1b]8;;",
            b"\x1b]8;;http://a.example\x1b\\",
            b"\x1bc",
            b"\x1b#",
            b"\xc2\x9b31m",
            b"#033[31m",
            b"\x07",
        ]
    ),
    st.sampled_from(list(KNOWN.values())),
    st.sampled_from([value[:size] for value in KNOWN.values() for size in (1, 3, 5)]),
    st.binary(max_size=12),
)
TEXTS = st.lists(FRAGMENTS, max_size=7).map(b"".join)


@st.composite
def cut(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    data = draw(texts)
    ends = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return data, [data[a:b] for a, b in pairwise([0, *ends, len(data)])]


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join([*map(stream.feed, pieces), stream.end()])


@pytest.mark.requirement("GRD-5")
@settings(max_examples=250, deadline=None)
@given(cut(TEXTS), st.sampled_from([PLAIN, KNOWING]))
@example((b"x", [b"-----BEGIN PRIVATE KEY-----\n" + BODY, b"-----E", b"ND X-----\n"]), PLAIN)
@example((b"x", [b"qwe-12", b"[reda", b"cted:a]"]), KNOWING)
def test_a_stream_is_cleaned_the_same_however_it_is_cut(
    data_and_pieces: tuple[bytes, list[bytes]], redactor: Redactor
) -> None:
    _, pieces = data_and_pieces
    assert streamed(redactor, pieces) == redactor.redact(b"".join(pieces)).data


@pytest.mark.requirement("GRD-5")
@settings(max_examples=30, deadline=None)
@given(st.lists(FRAGMENTS, max_size=4).map(lambda parts: b"".join(parts)[:300]))
def test_byte_by_byte_is_no_way_around_it(data: bytes) -> None:
    pieces = [data[i : i + 1] for i in range(len(data))]
    assert streamed(KNOWING, pieces) == KNOWING.redact(data).data


@pytest.mark.requirement("GRD-5", "SEC-2")
@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(ENCODED)),
    st.sampled_from([b"", b"x", b"say ", b"=", b"\n", b"%", b"aHVu"]),
    st.sampled_from([b"", b" ", b"y", b"=", b"\n"]),
)
def test_no_form_of_a_known_value_survives_any_cut(
    data: st.DataObject, name: str, before: bytes, after: bytes
) -> None:
    value = ENCODED[name][:200]
    redactor = Redactor(known=lambda: {name: value})
    form = data.draw(st.sampled_from(forms(value)))
    written = b"".join(data.draw(st.sampled_from(unit)) for unit in form.units)
    text, pieces = data.draw(cut(st.just(before + written + after)))
    shown = streamed(redactor, pieces)
    assert all(form.first(shown) is None for form in forms(value))
    assert b"[redacted:secret " in shown
    # What has left before it was clear what it is: two bytes of a form, none of the value itself.
    whole = redactor.redact(text).data
    assert len(shown) <= len(whole) + 2
    if form.encoding == "raw":
        assert shown == whole


@pytest.mark.requirement("GRD-5")
@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from([PLAIN, KNOWING]))
def test_what_is_clean_stays_as_it_is(data: bytes, redactor: Redactor) -> None:
    once = redactor.redact(data)
    assert redactor.redact(once.data).data == once.data
    if not once.hits:
        assert once.data == data


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(alphabet=st.characters(categories=["Cs"]), max_size=4))
def test_any_text_survives(text: str, surrogates: str) -> None:
    told = KNOWING.redact_text(text + surrogates)
    if not told.hits:
        assert told.text == text + surrogates
    again = KNOWING.redact_text(told.text)
    assert again.text == told.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | TEXTS.map(bytes.hex),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_data_is_cleaned_once_and_for_all(value: Json) -> None:
    once = KNOWING.redact_json(value)
    assert KNOWING.redact_json(once) == once


@pytest.mark.requirement("ERR-1")
@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                "[[rules]]\n",
                "[[rules.allowlists]]\n",
                "[allowlist]\n",
                "[extend]\n",
                'id = "a"\n',
                "id = 3\n",
                "regex = '''(a|b)+'''\n",
                "regex = '''('''\n",
                "regex = 1\n",
                'keywords = ["a", ""]\n',
                "keywords = 1\n",
                "entropy = 3\n",
                "entropy = nan\n",
                "secretGroup = 1\n",
                "secretGroup = -1\n",
                'regexes = ["a"]\n',
                'stopwords = ["b"]\n',
                'condition = "AND"\n',
                'regexTarget = "line"\n',
                'path = "a"\n',
            ]
        ),
        max_size=10,
    ).map("".join)
)
def test_a_rule_file_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        Redactor(load_gitleaks(text)).redact(b"a ab " * 3)
