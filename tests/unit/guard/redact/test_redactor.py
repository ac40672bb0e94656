"""Bytes, texts and data without secrets."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from random import Random
from urllib.parse import quote

import pytest

from cellwall.core.types import Json
from cellwall.guard.redact import Redacted, RedactedText, Redactor, SecretHit, shipped
from cellwall.guard.redact.redactor import TOO_DEEP
from cellwall.guard.redact.stream import MAX_HITS

VALUE = "tök/5f9c+2e81d7=="
KNOWN: Mapping[str, bytes] = {"API": VALUE.encode(), "LONG": b"0123456789" * 200}
TOKEN = "ghp_16C7e42F292c69C2E7C10c838347Ae178B4a"

REDACTOR = Redactor(known=lambda: KNOWN)


@pytest.mark.requirement("GRD-5", "SEC-2")
@pytest.mark.parametrize(
    "written",
    [
        VALUE.encode(),
        base64.b64encode(VALUE.encode()),
        base64.urlsafe_b64encode(b"a" + VALUE.encode()),
        VALUE.encode().hex().encode(),
        VALUE.encode().hex(":").upper().encode(),
        quote(VALUE, safe="").encode(),
        json.dumps(VALUE).encode(),
        VALUE.encode()[::-1],
    ],
)
def test_a_known_value_goes_however_it_is_written(written: bytes) -> None:
    told = REDACTOR.redact(b"<" + written + b">")
    assert [hit.rule for hit in told.hits] == ["secret API"]
    assert b"[redacted:secret API]" in told.data
    assert written not in told.data


@pytest.mark.requirement("GRD-5", "SEC-2")
def test_a_known_value_gives_the_name_where_a_rule_would_find_it_too() -> None:
    redactor = Redactor(known=lambda: {"GITHUB": TOKEN.encode()})
    assert redactor.redact_text(f"token={TOKEN} and {TOKEN}!").text == (
        "token=[redacted:secret GITHUB] and [redacted:secret GITHUB]!"
    )


def test_what_holds_no_secret_comes_back_as_it_is() -> None:
    data = bytes(range(256)) * 8
    assert REDACTOR.redact(data) == Redacted(data, ())
    assert REDACTOR.redact(b"") == Redacted(b"", ())
    assert REDACTOR.redact_text("") == RedactedText("", ())


def test_texts_with_lone_surrogates_survive() -> None:
    text = "\ud800 \udc80\udcff é \udfff"
    assert REDACTOR.redact_text(text) == RedactedText(text, ())
    cleaned = REDACTOR.redact_text(f"{text} {TOKEN} {text}")
    assert cleaned == RedactedText(
        f"{text} ghp_[redacted:github-token] {text}",
        (SecretHit("github-token", len(text) + 5, len(text) + 41),),
    )


def test_bytes_that_became_surrogates_are_found_again() -> None:
    redactor = Redactor(known=lambda: {"RAW": b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"})
    text = b"a \xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8 b".decode("utf-8", "surrogateescape")
    assert redactor.redact_text(text).text == "a [redacted:secret RAW] b"


def test_places_in_texts_are_characters() -> None:
    told = REDACTOR.redact_text(f"äöü {TOKEN} ß {TOKEN}")
    assert told.hits == (
        SecretHit("github-token", 8, 44),
        SecretHit("github-token", 51, 87),
    )


@pytest.mark.requirement("GRD-5")
def test_data_is_cleaned_in_texts_keys_and_named_values() -> None:
    data: Json = {
        "user": "me",
        "password": "hunter2x",
        "headers": {"Authorization": "Bearer abc123def4567"},
        "argv": ["--token", "Zk3vQ8mT1xLr6WbY0pNs", "--verbose"],
        "nested": [[{"note": f"use {TOKEN}"}], 1, 2.5, None, True],
        TOKEN: "by key",
        "count": 7,
    }
    assert REDACTOR.redact_json(data) == {
        "user": "me",
        "password": "[redacted:named-secret]",
        "headers": {"Authorization": "[redacted:authorization-header]"},
        "argv": ["--token", "[redacted:named-secret]", "--verbose"],
        "nested": [[{"note": "use ghp_[redacted:github-token]"}], 1, 2.5, None, True],
        "ghp_[redacted:github-token]": "by key",
        "count": 7,
    }


def test_keys_that_look_alike_when_clean_are_both_kept() -> None:
    other = TOKEN[:-1] + "b"
    shown = "ghp_[redacted:github-token]"
    assert REDACTOR.redact_json({TOKEN: 1, other: 2}) == {shown: 1, f"{shown} (2)": 2}


def test_data_deeper_than_anybody_reads_is_left_out() -> None:
    deep: Json = TOKEN
    for _ in range(5000):
        deep = [deep]
    shown = REDACTOR.redact_json(deep)
    for _ in range(64):
        assert isinstance(shown, list)
        (shown,) = shown
    assert shown == TOO_DEEP


@pytest.mark.requirement("GRD-5")
def test_a_marker_is_never_redacted_again_even_if_a_secret_is_a_word_of_it() -> None:
    redactor = Redactor(known=lambda: {"A": b"secret", "B": b"redacted", "C": b"github-token"})
    once = redactor.redact_text(f"a secret, redacted {TOKEN} github-token")
    assert once.text == (
        "a [redacted:secret A], redacted ghp_[redacted:github-token] [redacted:secret C]"
    )
    assert redactor.redact_text(once.text) == RedactedText(once.text, ())


@pytest.mark.slow
def test_hits_are_listed_up_to_a_bound_and_all_taken_out() -> None:
    count = MAX_HITS + 500
    told = Redactor().redact(TOKEN.encode() * 0 + (TOKEN.encode() + b"\n") * count)
    assert len(told.hits) == MAX_HITS
    assert told.data == b"ghp_[redacted:github-token]\n" * count


def test_one_redactor_serves_many_threads() -> None:
    told: list[str] = []

    def work() -> None:
        told.extend(REDACTOR.redact_text(f"{i} {TOKEN} {VALUE}").text for i in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [f"{i} ghp_[redacted:github-token] [redacted:secret API]" for i in range(20)]
    assert sorted(told) == sorted(expected * 4)


@pytest.mark.parametrize("seed", range(40))
def test_short_texts_are_cleaned_as_a_stream_cleans_them(seed):
    random = Random(seed)
    words = [text for rule in shipped().shapes for text in (*rule.match, *rule.not_match)]
    words += ["token=", "[redacted:jwt]", "hfsecret_a_", "\n", " ", '"', "key: ", "\\", "é", "-"]
    redactor = Redactor()
    for _ in range(25):
        text = "".join(random.choices(words, k=random.randint(1, 5)))[:4000]
        stream = redactor.redact(text.encode())
        assert redactor.redact_text(text).text.encode() == stream.data
