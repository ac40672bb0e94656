"""Chance is told from names, by entropy and by what can be read out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.parsing.credentials.entropy import NOT, STRONG, WEAK, randomness, shannon


def test_entropy_is_counted_in_bits() -> None:
    told = {text: round(shannon(text), 3) for text in (b"", b"aaaa", b"abab", b"abcd", b"aabc")}
    assert told == {b"": 0.0, b"aaaa": 0.0, b"abab": 1.0, b"abcd": 2.0, b"aabc": 1.5}


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        (b"9f8e7d6c5b4a39281706f5e4d3c2b1a0", STRONG),
        (b"Zk3vQ8mT1xLr6WbY0pNs", STRONG),
        (b"DjayBenyJrtpvydFCzAphcqc", STRONG),
        (b"abcdefghijklmnopqrstuvwxyz123456", STRONG),
        (b"123e4567-e89b-12d3-a456-426614174000", STRONG),
        (b"8195513847023883", WEAK),
        (b"ABC123DEF456", WEAK),
        (b"getAccessTokenFromRequest", NOT),
        (b"my_secret_key_name_2", NOT),
        (b"ed25519.Ed25519PrivateKey", NOT),
        (b"sha256WithRSAEncryption", NOT),
        (b"2024-01-01T00:00:00", NOT),
        (b"us-east-1-production", NOT),
        (b"aaaaaaaaaaaaaaaaaaaaaaaa1", NOT),
        (b"short1", NOT),
        (b"", NOT),
    ],
)
def test_keys_look_random_and_names_do_not(value: bytes, looks: int) -> None:
    assert randomness(value) == looks


@given(st.binary(max_size=300))
def test_any_bytes_are_judged(value: bytes) -> None:
    assert randomness(value) in (NOT, WEAK, STRONG)
