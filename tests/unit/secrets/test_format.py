"""The file's form: what is whole is read as it was written, all else is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, VaultError
from cellwall.secrets.format import (
    Argon2,
    KeySlot,
    Secret,
    VaultContent,
    VaultPreamble,
    Version,
    finish_frame,
    read_content,
    read_frame,
    to_sign,
)
from cellwall.secrets.leases import Grant
from cellwall.secrets.sealing import Ciphertext
from unit.secrets.vaults import GITHUB, resealed_frame

NONCE, MAC = b"n" * 12, b"m" * 32
VAULT = "vlt_" + "0" * 26
SLOT = KeySlot(
    source="passphrase",
    salt=b"s" * 16,
    argon2=Argon2(65_536, 3, 4),
    check=b"c" * 16,
    sealed=Ciphertext(NONCE, b"k" * 48),
)
CONTENT = VaultContent(
    secrets={
        "TOKEN": Secret(
            current=Version(2, 20.5, Ciphertext(NONCE, b"current")),
            previous=Version(1, 10.0, Ciphertext(NONCE, b"previous")),
            grants=(
                Grant(id="gr_1", binding=GITHUB, tools=("run",), session="s", until_s=5.0),
                Grant(id="gr_2", binding=GITHUB),
            ),
            made_s=10.0,
        ),
        "OTHER": Secret(current=Version(1, 1.0, Ciphertext(NONCE, b"x"))),
    },
    keys=Ciphertext(NONCE, b"keys"),
    known=Ciphertext(NONCE, b"known"),
)
FILE = finish_frame(to_sign(VaultPreamble(VAULT, 7, SLOT), CONTENT), MAC)


def code_of(data: bytes) -> str:
    with pytest.raises(VaultError) as caught:
        read_frame(data)
    return caught.value.code


def test_what_was_written_is_read():
    frame = read_frame(FILE)
    assert (frame.preamble, frame.mac) == (VaultPreamble(VAULT, 7, SLOT), MAC)
    assert read_content(frame.content) == CONTENT


@pytest.mark.requirement("SEC-7")
def test_every_cut_is_told_as_one():
    assert {code_of(FILE[:length]) for length in range(len(FILE))} == {"CW-VAULT-TRUNCATED"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FILE + b"\n", "CW-VAULT-TAMPERED"),
        (b"something else", "CW-VAULT-TAMPERED"),
        (b"\0" * 500, "CW-VAULT-TAMPERED"),
        (FILE.replace(b"cellwall-vault 1 ", b"cellwall-vault 2 "), "CW-VAULT-FORMAT"),
        (resealed_frame(FILE.replace(b"vault/1", b"vault/9")), "CW-VAULT-FORMAT"),
    ],
)
def test_what_is_not_ours_is_refused(data, code):
    assert code_of(data) == code


def bent(**changes: object) -> bytes:
    head, first, rest = FILE.split(b"\n", 2)
    told = json.loads(first)
    for path, value in changes.items():
        *parts, last = path.split("__")
        inner = told
        for part in parts:
            inner = inner[part]
        inner[last] = value
    return resealed_frame(b"\n".join([head, json.dumps(told).encode(), rest]))


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"generation": True},
        {"generation": 1 << 60},
        {"generation": "7"},
        {"vault": "../../etc/passwd"},
        {"slot": None},
        {"slot": []},
        {"slot__source": "nobody"},
        {"slot__source": "file"},
        {"slot__argon2id": None},
        # Without bounds one would take all memory, the other a year.
        {"slot__argon2id": [1 << 40, 3, 4]},
        {"slot__argon2id": [65_536, 1 << 31, 4]},
        {"slot__argon2id": [8, 1, 4]},
        {"slot__argon2id": [65_536, 3]},
        {"slot__argon2id": [65_536.0, 3, 4]},
        {"slot__argon2id": 3},
        {"slot__salt": ""},
        {"slot__salt": "****"},
        {"slot__salt": 5},
        {"slot__check": "AAAA"},
        {"slot__nonce": "AAAA"},
        {"slot__sealed": "AAAA"},
        {"slot__key_id": "key/../x"},
        {"slot__padding": "x" * 5000},
    ],
)
def test_an_opening_that_was_forged_is_refused_before_it_costs_anything(changes):
    assert code_of(bent(**changes)) == "CW-VAULT-TAMPERED"


def test_the_forging_itself_makes_files_that_can_be_read():
    assert read_frame(bent(generation=8)).preamble == VaultPreamble(VAULT, 8, SLOT)


def told(data: bytes) -> str:
    try:
        read_content(read_frame(data).content)
    except VaultError as error:
        return error.code
    return "read"


@pytest.mark.requirement("RED-2")
@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_whatever_lies_there_is_refused_by_name(data):
    framed = resealed_frame(FILE[: FILE.index(b"\n") + 1] + data)
    for attempt in (data, FILE[:17] + data, framed):
        assert told(attempt).startswith("CW-VAULT-")
    assert told(FILE) == "read"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_json_stands_within_is_read_or_refused(value):
    for told in (value, {"secrets": value}, {"secrets": {"default": {"A": value}}}):
        with pytest.raises(VaultError) as caught:
            read_content(json.dumps(told).encode())
        assert caught.value.code == "CW-VAULT-TAMPERED"


@pytest.mark.parametrize(
    "costs", [(7, 1, 1), (64, 0, 1), (64, 101, 1), (1 << 23, 1, 1), (1 << 20, 1, 65)]
)
def test_costs_have_bounds(costs):
    with pytest.raises(BadInput):
        Argon2(*costs)
