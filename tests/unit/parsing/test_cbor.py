"""Plain CBOR: what authenticators write passes, what a decoder stumbles over does not."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.parsing.cbor import plain_end

pytestmark = pytest.mark.requirement("SRV-2")
KEYS = st.integers(-(2**64), 2**64 - 1) | st.text(max_size=8)
PLAIN = st.recursive(
    KEYS | st.binary(max_size=40) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)


def shared_key(levels: int) -> bytes:
    """A map whose key is a list of shared lists: to hash it takes 2 to the power of `levels`."""

    def level(number: int) -> bytes:
        if number == levels:
            return b"\xd8\x1c\x82\x00\x00"
        return b"\xd8\x1c\x82" + level(number + 1) + b"\xd8\x1d" + cbor2.dumps(number + 1)

    return b"\xa1" + level(0) + b"\x00"


@settings(max_examples=50, deadline=None)
@given(PLAIN, st.binary(max_size=4))
def test_what_an_encoder_writes_passes_and_ends_where_it_ends(value: object, rest: bytes) -> None:
    data = cbor2.dumps(value)
    assert plain_end(data + rest) == len(data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_what_passes_is_encoded_again_to_the_same_bytes(data: bytes) -> None:
    try:
        end = plain_end(data)
    except ValueError:
        return
    try:
        value = cbor2.loads(data[:end], allow_duplicate_keys=False)
    except cbor2.CBORDecodeError:
        return  # a text that is no UTF-8, a key that comes twice
    assert cbor2.dumps(value) == data[:end]


HOSTILE = {
    "shared keys": shared_key(3),
    "a list as key": b"\xa1\x81\x00\x00",
    "a tag": b"\xc1\x00",
    "a big number": b"\xc2\x41\x01",
    "a regular expression": cbor2.dumps(cbor2.CBORTag(35, "(a+)+$")),
    "an indefinite list": b"\x9f\x00\xff",
    "a float": b"\xf9\x3c\x00",
    "undefined": b"\xf7",
    "a long form": b"\x18\x17",
    "a longer form": b"\x1b\x00\x00\x00\x00\x00\x00\x00\x01",
    "deep": b"\x81" * 9 + b"\x00",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_everything_else_is_refused_although_a_decoder_takes_it(data: bytes) -> None:
    cbor2.loads(data)  # the control
    with pytest.raises(ValueError, match=r"tag|key|shortest"):
        plain_end(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x18", b"\x42a", b"\x82\x00", b"\xa1\x00", b"\x9a" + b"\xff" * 4]
)
def test_data_that_are_cut_off_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"early|cut off|longer"):
        plain_end(data)
