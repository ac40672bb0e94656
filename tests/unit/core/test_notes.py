"""Signed notes: what C2SP's signed-note says, and what must not pass for one."""

from __future__ import annotations

import base64
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.keys import SigningKey
from cellwall.core.notes import MAX_NOTE_BYTES, BadNote, PublicKey, open_note, signed_note

# The example of the specification and of Go's sumdb/note.
TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
NOTE = (
    TEXT + "\n\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
    "KvqfqdngotpRZb6KE6RyyBwJnAM=\n"
).encode()


def key(name: str, seed: int = 1) -> SigningKey:
    return SigningKey(name, Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


ANN, BOB = key("ann", 1), key("bob", 2)


def refused(note: bytes, *keys: PublicKey) -> str:
    with pytest.raises(BadNote) as caught:
        open_note(note, keys or [ANN.public])
    return str(caught.value)


@pytest.mark.requirement("AUD-2")
def test_example_of_the_specification_opens():
    assert open_note(NOTE, [PublicKey.parse(PETER)]) == (TEXT, (PublicKey.parse(PETER),))


@pytest.mark.requirement("AUD-2")
def test_example_of_the_specification_is_made():
    peter = SigningKey("PeterNeumann", Ed25519PrivateKey.from_private_bytes(PETERS_SEED))
    assert str(peter.public) == PETER
    assert signed_note(TEXT, peter) == NOTE


@given(st.text(st.characters(min_codepoint=32, codec="utf-8")).map(lambda text: text + "\n"))
def test_any_text_comes_back(text):
    note = signed_note(text, ANN, BOB)
    assert open_note(note, [BOB.public, ANN.public]) == (text, (ANN.public, BOB.public))
    assert open_note(note, [BOB.public]) == (text, (BOB.public,))


def test_text_may_hold_empty_lines_and_lines_like_signatures():
    text = "a\n\n\u2014 ann x08gow==\n\nb\n"
    assert open_note(signed_note(text, ANN), [ANN.public])[0] == text


@pytest.mark.requirement("AUD-2")
def test_every_changed_byte_of_the_text_or_the_signature_is_found():
    note = signed_note("origin\n7\nroot\n", ANN)
    for at in range(len(note)):
        for flip in (1, 128):
            changed = bytearray(note)
            changed[at] ^= flip
            try:
                text, signed = open_note(bytes(changed), [ANN.public])
            except BadNote:
                continue
            # Two of base64's last bits mean nothing: the very same signature, spelled otherwise.
            assert (text, signed, at) == ("origin\n7\nroot\n", (ANN.public,), len(note) - 3)


def test_signature_of_another_text_is_a_forgery():
    _, _, signature = signed_note("other\n", ANN).partition(b"\n\n")
    assert refused(b"text\n\n" + signature) == "the signature of ann is wrong"


def test_forged_signature_beside_a_good_one_is_not_passed_over():
    good = signed_note("text\n", BOB)
    _, _, forged = signed_note("other\n", ANN).partition(b"\n\n")
    assert refused(good + forged, BOB.public, ANN.public) == "the signature of ann is wrong"
    # Who does not know ann cannot tell, and need not.
    assert open_note(good + forged, [BOB.public]) == ("text\n", (BOB.public,))


def test_unknown_keys_prove_nothing():
    note = signed_note("text\n", BOB)
    assert refused(note) == "no known key has signed it"
    assert refused(note, key("bob", 3).public) == "no known key has signed it"
    with pytest.raises(BadNote):
        open_note(note, [])


def test_doubled_signature_counts_once():
    note = signed_note("text\n", ANN, ANN)
    assert open_note(note, [ANN.public])[1] == (ANN.public,)


def test_signatures_of_other_kinds_are_passed_over():
    other = base64.b64encode(ANN.public.id + b"x" * 100).decode()
    note = signed_note("text\n", ANN) + f"\u2014 ann {other}\n".encode()
    assert open_note(note, [ANN.public])[1] == (ANN.public,)


SIGNATURE = signed_note("text\n", ANN).partition(b"\n\n")[2]


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\n",
        b"\n\n",
        b"text\n",
        b"text\n\n",
        b"text\n" + SIGNATURE,
        b"text\n\n" + SIGNATURE[:-1],
        b"text\n\n" + SIGNATURE + b"\n",
        b"text\n\n" + SIGNATURE + b"more\n",
        b"text\n\n" + SIGNATURE.replace(b"\xe2\x80\x94", b"-"),
        b"text\n\n" + SIGNATURE.replace(b"\xe2\x80\x94", b"\xe2\x80\x93"),
        b"text\n\n" + SIGNATURE.replace(b"ann", b"a+n"),
        b"text\n\n" + SIGNATURE.replace(b" ann ", b"  "),
        b"text\n\n" + SIGNATURE.replace(b"=", b""),
        b"text\n\n" + SIGNATURE.replace(b"\n", b" x\n"),
        "text\n\n\u2014 ann AAAA\n".encode(),
        "text\n\n\u2014 ann \n".encode(),
        b"text\r\n\r\n" + SIGNATURE,
        b"te\r\nxt\n\n" + SIGNATURE,
        b"te\txt\n\n" + SIGNATURE,
        b"te\x00xt\n\n" + SIGNATURE,
        b"te\x1bxt\n\n" + SIGNATURE,
        b"\xff\n\n" + SIGNATURE,
        b"text\n\n" + SIGNATURE * 101,
        b"x" * MAX_NOTE_BYTES + b"\n\n" + SIGNATURE,
    ],
)
def test_malformed_notes_are_refused(note):
    refused(note)


def test_signature_lines_with_crlf_are_refused():
    note = signed_note("text\n", ANN)
    assert refused(note.replace(b"\n", b"\r\n"))
    assert refused(note[:-1] + b"\r\n") == "a line below the text is not a signature"


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(data):
    refused(data)


@given(st.binary(max_size=40))
def test_foreign_bytes_below_a_text_are_refused(data):
    refused(b"text\n\n" + data)


@pytest.mark.parametrize("text", ["", "text", "a\rb\n", "a\x00\n", "a\tb\n", "a\x1f\n"])
def test_texts_that_are_none_are_not_signed(text):
    with pytest.raises(BadNote):
        signed_note(text, ANN)


# --- public keys


@given(st.integers(0, 255), st.from_regex(r"[!-*,-~\u00e9]+", fullmatch=True))
def test_public_key_reads_back(seed, name):
    public = key(name, seed).public
    assert PublicKey.parse(str(public)) == public
    assert PublicKey.parse(f"  {public}\n") == public
    assert public.id == sha256(name.encode() + b"\n\x01" + public.raw).digest()[:4]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PeterNeumann",
        "PeterNeumann+c74f20a3",
        PETER.replace("c74f20a3", "c74f20a4"),
        PETER.replace("c74f20a3", "C74F20A3"),
        PETER.replace("PeterNeumann", "PaulNeumann"),
        PETER.replace("PeterNeumann", "Peter Neumann"),
        PETER.replace("PeterNeumann", ""),
        PETER[:-4],
        PETER + "AAAA",
        PETER.replace("+AR", "+Ah"),
        PETER.replace("+AR", "+-R"),
        "x+00000000+\u00e9",
    ],
)
def test_malformed_public_keys_are_refused(text):
    with pytest.raises(BadNote):
        PublicKey.parse(text)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u00a0b"])
def test_name_that_would_break_a_note_is_refused(name):
    with pytest.raises(BadNote):
        PublicKey(name, b"\0" * 32)
