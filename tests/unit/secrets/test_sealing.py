"""AES-256-GCM, bound to a place; keys out of keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.secrets.sealing import (
    BadSeal,
    Ciphertext,
    KeyPage,
    derive_into,
    pad,
    part_aad,
    record_aad,
    seal,
    unpad,
    unseal,
    wipe,
)

KEY = bytes(range(32))
HERE = record_aad(namespace="default", name="TOKEN", version=1)


@given(st.binary(min_size=1, max_size=300))
def test_what_is_sealed_opens_in_its_own_place(value):
    plain = unseal(KEY, seal(KEY, pad(value), HERE), HERE)
    assert bytes(unpad(plain)) == value
    assert len(plain) % 64 == 0


@pytest.mark.requirement("SEC-1")
@pytest.mark.parametrize(
    "aad",
    [
        record_aad(namespace="other", name="TOKEN", version=1),
        record_aad(namespace="default", name="TOKEN2", version=1),
        record_aad(namespace="default", name="TOKEN", version=2),
        part_aad(vault="vlt_x", part="keys"),
        b"",
    ],
)
def test_it_opens_in_no_other_place(aad):
    sealed = seal(KEY, b"value", HERE)
    assert unseal(KEY, sealed, HERE) == b"value"
    with pytest.raises(BadSeal):
        unseal(KEY, sealed, aad)


def test_the_words_that_bind_are_canonical():
    assert HERE == b'{"name":"TOKEN","namespace":"default","schema":"cellwall.vault/1","version":1}'


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 20])
def test_every_bit_counts_and_nothing_is_too_short(cut):
    sealed = seal(KEY, b"value", HERE)
    with pytest.raises(BadSeal):
        unseal(KEY, Ciphertext(sealed.nonce, sealed.data[:cut]), HERE)
    for at in range(len(sealed.data)):
        bent = bytearray(sealed.data)
        bent[at] ^= 1
        with pytest.raises(BadSeal):
            unseal(KEY, Ciphertext(sealed.nonce, bytes(bent)), HERE)


def test_no_nonce_is_used_twice():
    assert len({seal(KEY, b"value", HERE).nonce for _ in range(500)}) == 500


def test_each_purpose_has_a_key_of_its_own():
    first, second = bytearray(32), bytearray(32)
    derive_into(KEY, "seal", first)
    derive_into(KEY, "sign", second)
    assert len({bytes(first), bytes(second), KEY}) == 3


@pytest.mark.parametrize("plain", [bytearray(63), bytearray(b"\xff" * 64), bytearray()])
def test_a_padding_that_is_not_ours_is_no_value(plain):
    if plain:
        with pytest.raises(BadSeal):
            unpad(plain)


def test_a_key_stays_where_it_was_put():
    page = KeyPage()
    first, second = bytes(page.make("a")), bytes(page.make("b"))
    assert first != second
    assert (bytes(page.buffer("a")), bytes(page.buffer("b"))) == (first, second)
    assert repr(page) == "KeyPage(a, b)"
    assert page.is_live
    view = page.buffer("a")
    page.wipe()
    assert bytes(view) == bytes(32)
    assert not page.is_live


def test_wiping_leaves_zeros():
    memory = bytearray(b"secret")
    wipe(memory)
    assert memory == bytes(6)


@pytest.mark.requirement("SEC-4")
def test_a_child_finds_zeros_and_knows_it():
    script = (
        "import os\n"
        "from cellwall.secrets.sealing import KeyPage\n"
        "page = KeyPage()\n"
        "key = bytes(page.make('a'))\n"
        "assert page.is_live and any(key)\n"
        "if os.fork() == 0:\n"
        "    os._exit(0 if bytes(page.buffer('a')) == bytes(32) and not page.is_live else 1)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert bytes(page.buffer('a')) == key\n"  # the parent still has it
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_page_is_not_dumped_and_where_allowed_not_swapped():
    page = KeyPage()
    page.make("a")
    maps = Path("/proc/self/smaps").read_text().split("VmFlags: ")
    flags = [each.split("\n")[0].split() for each in maps[1:]]
    assert any("dd" in each and "wf" in each for each in flags)
    if os.geteuid() == 0:
        assert any("lo" in each and "dd" in each for each in flags)
