"""Secrets stored, replaced, granted, lent and removed."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, VaultError
from cellwall.core.network import Binding
from cellwall.secrets.format import VaultSettings
from cellwall.secrets.leases import new_placeholder
from cellwall.secrets.store import MAX_VALUE_BYTES, VaultStore
from cellwall.secrets.values import weakness
from unit.secrets.vaults import (
    BY_FILE,
    GITHUB,
    OTHER,
    QUICK,
    VALUE,
    again,
    at,
    made,
    passphrase,
)

MINE = "sbx_" + "0" * 26


def refusal(function, *words, **named) -> str:
    with pytest.raises((VaultError, BadInput)) as caught:
        function(*words, **named)
    return caught.value.code


@pytest.fixture
def vault(home: Path) -> VaultStore:
    return made(home)


# What is stored


def test_what_is_stored_comes_back_for_whoever_has_the_key(home, vault):
    expected = {"TOKEN": VALUE, "TOKEN@1": b"the value before", "OTHER": OTHER}
    assert vault.values() == expected
    assert again(home).values() == expected
    assert [(each.name, each.version, each.has_previous) for each in vault.list()] == [
        ("OTHER", 1, False),
        ("TOKEN", 2, True),
    ]


@pytest.mark.requirement("SEC-1")
def test_neither_values_nor_their_sizes_stand_in_the_files(home, vault):
    vault.set("SIZE", b"x" * 100)
    kept = b"".join(path.read_bytes() for path in Path(at(home)).iterdir())
    for value in (VALUE, OTHER, b"the value before"):
        assert value not in kept
    vault.set("SIZE", b"x" * 101)
    assert len(Path(at(home), "store").read_bytes()) > 0
    sizes = set()
    for size in (61, 100, 124):
        vault.set("SIZE", b"x" * size)
        vault.end_overlap("SIZE")
        sizes.add(len(re.findall(rb'"sealed":"([^"]+)"', Path(at(home), "store").read_bytes())[-1]))
    assert len(sizes) == 1


@pytest.mark.parametrize("value", [b"x", bytes(range(256)), b"\n", b"v" * MAX_VALUE_BYTES])
def test_values_are_bytes_of_any_kind(home, vault, value):
    vault.set("VALUE", value)
    assert again(home).values()["VALUE"] == value


@pytest.mark.parametrize("value", [b"", b"v" * (MAX_VALUE_BYTES + 1)])
def test_values_have_bounds(vault, value):
    assert refusal(vault.set, "VALUE", value) == "CW-VAULT-VALUE"
    assert "VALUE" not in vault.values()


def test_a_vault_is_not_replaced_by_init(home, vault):
    assert refusal(VaultStore(at(home), BY_FILE).init) == "CW-VAULT-EXISTS"
    assert again(home).values()["TOKEN"] == VALUE


def test_files_are_private_whatever_the_umask_is(home):
    before = os.umask(0)
    try:
        made(home)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(at(home)).iterdir()}
    assert modes == {"store": 0o600, "seen": 0o600, "lock": 0o600}
    assert Path(at(home)).stat().st_mode & 0o777 == 0o700


# Locked


@pytest.mark.requirement("SEC-7")
def test_a_locked_vault_gives_and_takes_nothing(home, vault):
    lease = vault.lease(["TOKEN"], tool="run")
    vault.lock()
    for function in (vault.list, lambda: vault.set("A", b"x"), lambda: vault.remove("TOKEN")):
        assert refusal(function) == "CW-VAULT-LOCKED"
    assert refusal(vault.lease, ["TOKEN"], tool="run") == "CW-VAULT-LOCKED"
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"
    assert (dict(vault.values()), vault.contains_old(VALUE), vault.is_unlocked) == ({}, (), False)
    assert vault.source == "file"
    vault.unlock()
    assert vault.values()["TOKEN"] == VALUE
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"


def test_no_vault_is_told_as_such(home):
    vault = VaultStore(at(home), BY_FILE)
    assert not vault.exists
    assert refusal(vault.unlock) == "CW-VAULT-MISSING"


# Rotation


@pytest.mark.requirement("SEC-6")
def test_the_value_before_is_known_and_not_handed_out_then_wiped(home, vault):
    lease = vault.lease(["TOKEN"], tool="run")
    assert vault.rotate("TOKEN", b"third value") == 3
    assert lease.uses[0].reveal() == b"third value"
    assert vault.values() == {"TOKEN": b"third value", "TOKEN@2": VALUE, "OTHER": OTHER}
    assert vault.end_overlap("TOKEN")
    assert not vault.end_overlap("TOKEN")
    assert vault.values() == {"TOKEN": b"third value", "OTHER": OTHER}
    # Gone, and still known to be one.
    assert again(home).contains_old(b"x " + VALUE + b" y") == ("TOKEN",)


def test_only_what_is_there_is_rotated(vault):
    assert refusal(vault.rotate, "NEW", b"value") == "CW-VAULT-UNKNOWN"
    assert refusal(vault.end_overlap, "NEW") == "CW-VAULT-UNKNOWN"
    assert refusal(vault.remove, "NEW") == "CW-VAULT-UNKNOWN"


@pytest.mark.requirement("SEC-6")
def test_what_is_wiped_is_overwritten_on_the_disk_as_far_as_we_can(home, vault):
    store = Path(at(home), "store")
    old = os.open(store, os.O_RDONLY)
    try:
        size = len(store.read_bytes())
        vault.rotate("TOKEN", b"third value")
        assert os.pread(old, size, 0) == bytes(size)
    finally:
        os.close(old)
    # A second name is somebody's backup.
    os.link(store, home / "backup")
    before = store.read_bytes()
    assert refusal(vault.rotate, "TOKEN", b"fourth value") != ""
    assert (home / "backup").read_bytes() == before


def test_removed_is_gone_and_its_grants_with_it(home, vault):
    lease = vault.lease(["TOKEN"], tool="run")
    vault.remove("TOKEN")
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"
    assert again(home).values() == {"OTHER": OTHER}
    vault.set("TOKEN", b"a new one")
    assert refusal(vault.lease, ["TOKEN"], tool="run") == "CW-VAULT-NOT-GRANTED"
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"


# New keys


@pytest.mark.requirement("SEC-6")
def test_rekey_changes_every_key_and_no_value(home, vault):
    store = Path(at(home), "store")
    before = set(re.findall(rb'"(?:nonce|sealed|salt|check)":"([^"]+)"', store.read_bytes()))
    key = (home / "vault-key").read_bytes()
    vault.rekey()
    after = set(re.findall(rb'"(?:nonce|sealed|salt|check)":"([^"]+)"', store.read_bytes()))
    assert before & after == set()
    assert (home / "vault-key").read_bytes() != key
    fresh = again(home)
    assert (
        fresh.values()
        == vault.values()
        == {"TOKEN": VALUE, "TOKEN@1": b"the value before", "OTHER": OTHER}
    )
    assert fresh.lease(["TOKEN"], tool="run").uses[0].reveal() == VALUE
    assert fresh.contains_old(b"the value before") == ()  # of three words, so not one
    assert fresh.contains_old(VALUE) == ("TOKEN",)


@pytest.mark.requirement("SEC-6")
def test_rekey_goes_from_any_kind_of_key_to_any_other(home, vault):
    by_command = VaultSettings(key="command", key_command=(sys.executable, "-c", "print('k' * 40)"))
    vault.rekey(settings=by_command)
    assert not (home / "vault-key").exists()
    again(home, by_command).rekey(passphrase(), settings=QUICK)
    assert again(home, QUICK).values()["TOKEN"] == VALUE
    wrong = VaultStore(at(home), QUICK)
    assert refusal(wrong.unlock, passphrase("another passphrase")) == "CW-VAULT-WRONG-KEY"
    elsewhere = VaultSettings(key="file", key_file=str(home / "other-key"))
    again(home, QUICK).rekey(settings=elsewhere)
    again(home, elsewhere).rekey(settings=BY_FILE)
    assert not (home / "other-key").exists()
    assert again(home).values()["TOKEN"] == VALUE


def test_who_has_the_vault_open_is_shut_out_by_a_rekey(home, vault):
    other = again(home)
    lease = other.lease(["TOKEN"], tool="run")
    vault.rekey()
    for function in (other.list, other.values, lease.uses[0].reveal, lambda: other.remove("TOKEN")):
        assert refusal(function) == "CW-VAULT-LOCKED"
    other.unlock()
    assert other.values() == vault.values()


# Others at the same time


def test_what_others_change_is_seen_at_once(home, vault):
    other = again(home)
    lease = vault.lease(["TOKEN"], tool="run")
    other.rotate("TOKEN", b"their value")
    assert lease.uses[0].reveal() == b"their value"
    assert vault.set("MINE", b"my value") == 1
    assert other.values() == vault.values()
    assert other.generation == vault.generation


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(home, vault):
    script = (
        "import sys\n"
        "from cellwall.secrets.store import VaultStore\n"
        "from cellwall.secrets.format import VaultSettings\n"
        "vault = VaultStore(sys.argv[1], VaultSettings(key='file'))\n"
        "vault.unlock()\n"
        "for number in range(8):\n"
        "    vault.set(f'{sys.argv[2]}_{number}', sys.argv[2].encode())\n"
    )
    names = ("A", "B", "C")
    running = [subprocess.Popen([sys.executable, "-c", script, at(home), name]) for name in names]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    found = again(home)
    assert {f"{name}_{number}" for name in names for number in range(8)} <= found.values().keys()
    assert found.generation == 5 + 24


# Grants and leases


@pytest.mark.requirement("SEC-3", "SEC-5")
def test_a_lease_shows_a_placeholder_and_reveals_until_it_ends(vault):
    with vault.lease(["TOKEN"], tool="run") as lease:
        use = lease.uses[0]
        assert (use.name, use.bindings, use.reveal()) == ("TOKEN", (GITHUB,), VALUE)
        assert VALUE.decode() not in repr(lease.uses)
        assert re.fullmatch(r"hfsecret_token_[a-z2-7]{26}", use.placeholder)
    assert refusal(use.reveal) == "CW-VAULT-LEASE-ENDED"
    assert lease.revealed == {"TOKEN": 1}


def test_no_two_placeholders_are_alike():
    assert len({new_placeholder("TOKEN") for _ in range(1000)}) == 1000


@pytest.mark.requirement("SEC-3")
def test_only_what_is_granted_is_lent(vault):
    assert refusal(vault.lease, ["OTHER"], tool="run") == "CW-VAULT-NOT-GRANTED"
    assert refusal(vault.lease, ["TOKEN", "OTHER"], tool="run") == "CW-VAULT-NOT-GRANTED"
    assert refusal(vault.lease, ["NOTHING"], tool="run") == "CW-VAULT-UNKNOWN"
    assert refusal(vault.lease, ["not a name"], tool="run") == "CW-VAULT-NAME"
    vault.grant("OTHER", Binding(host="a.example.com"), tools=["code"], session=MINE)
    assert refusal(vault.lease, ["OTHER"], tool="run", session=MINE) == "CW-VAULT-NOT-GRANTED"
    assert refusal(vault.lease, ["OTHER"], tool="code") == "CW-VAULT-NOT-GRANTED"
    lease = vault.lease(["TOKEN", "OTHER"], tool="code", session=MINE)
    assert [use.reveal() for use in lease.uses] == [VALUE, OTHER]


@pytest.mark.requirement("SEC-3")
def test_a_lease_ends_with_its_session(vault):
    mine = vault.lease(["TOKEN"], tool="run", session=MINE)
    other = vault.lease(["TOKEN"], tool="run", session="sbx_" + "1" * 26)
    vault.end_session(MINE)
    assert refusal(mine.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"
    assert other.uses[0].reveal() == VALUE


@pytest.mark.requirement("SEC-3")
def test_a_lease_ends_when_its_time_is_over(home):
    now_s = [1000.0]
    made(home)
    vault = VaultStore(at(home), BY_FILE, clock=lambda: now_s[0])
    vault.unlock()
    vault.revoke("TOKEN")
    vault.grant("TOKEN", GITHUB, until_s=1060.0)
    lease = vault.lease(["TOKEN"], tool="run")
    now_s[0] = 1059.9
    assert lease.uses[0].reveal() == VALUE
    now_s[0] = 1060.0
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"
    assert refusal(vault.lease, ["TOKEN"], tool="run") == "CW-VAULT-NOT-GRANTED"


@pytest.mark.requirement("SEC-3")
def test_a_lease_ends_when_its_grant_is_revoked_by_anybody(home, vault):
    second = vault.grant("TOKEN", Binding(host="b.example.com"))
    lease = vault.lease(["TOKEN"], tool="run")
    assert again(home).revoke("TOKEN", second.id) == 1
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"
    assert vault.lease(["TOKEN"], tool="run").uses[0].bindings == (GITHUB,)
    assert vault.revoke("TOKEN") == 1
    assert refusal(vault.lease, ["TOKEN"], tool="run") == "CW-VAULT-NOT-GRANTED"
    assert refusal(vault.revoke, "TOKEN", "gr_none") == "CW-VAULT-UNKNOWN"


@pytest.mark.slow
def test_grants_have_a_bound_and_make_room_when_they_are_over(home):
    now_s = [1000.0]
    vault = VaultStore(at(home), BY_FILE, clock=lambda: now_s[0])
    vault.init()
    vault.set("TOKEN", VALUE)
    for _ in range(64):
        vault.grant("TOKEN", GITHUB, until_s=1001.0)
    assert refusal(vault.grant, "TOKEN", GITHUB) == "CW-VAULT-FULL"
    now_s[0] = 1001.0
    vault.grant("TOKEN", GITHUB)
    assert len(vault.list()[0].grants) == 1


@pytest.mark.slow
def test_leases_that_nobody_holds_are_not_kept(vault):
    for _ in range(10):
        vault.lease(["TOKEN"], tool="run")
    gc.collect()
    assert len(vault._leases) == 0


# Known values


@pytest.mark.requirement("SEC-7")
def test_every_value_ever_stored_is_known_also_after_a_rekey(home, vault):
    for number in range(4):
        vault.rotate("OTHER", f"old-value-{number}".encode())
    vault.remove("OTHER")
    vault.rekey()
    found = again(home)
    for number in range(4):
        assert found.contains_old(f'{{"key": "old-value-{number}"}}'.encode()) == ("OTHER",)
    assert found.contains_old(b"old-value-4") == ()


def test_a_broken_file_is_not_an_empty_list_of_values(home, vault):
    # A scan of egress for vault values must not run with none (NET-5).
    store = Path(at(home), "store")
    store.write_bytes(store.read_bytes()[:-1])
    assert refusal(vault.values) == "CW-VAULT-TRUNCATED"
    assert refusal(vault.contains_old, b"x") == "CW-VAULT-TRUNCATED"
    store.unlink()
    assert refusal(vault.values) == "CW-VAULT-MISSING"


# Short values


@pytest.mark.requirement("SEC-5")
def test_a_value_that_would_be_met_by_chance_is_not_lent(vault):
    vault.set("PIN", b"1234567")
    vault.grant("PIN", GITHUB)
    assert refusal(vault.lease, ["PIN"], tool="run") == "CW-VAULT-VALUE"
    vault.rotate("PIN", b"12345678")
    lease = vault.lease(["PIN"], tool="run")
    assert lease.uses[0].reveal() == b"12345678"
    vault.rotate("PIN", b"1234")
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-VALUE"


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("PIN", b"1234567", "shorter"),
        ("GITHUB_TOKEN", b"github_t", "own name"),
        ("DOOR", b"PassWord", "common"),
        ("DOOR", b"q8ZxkP2m", ""),
    ],
)
def test_what_is_told_of_a_weak_value(name, value, word):
    told = weakness(name, value)
    assert word in told
    assert bool(told) is bool(word)
    assert value.decode() not in told


# A vault that is lost


@pytest.mark.requirement("NET-5", "SEC-7")
def test_a_vault_whose_file_is_gone_is_not_one_that_never_was(home, vault):
    never = VaultStore(str(home / "never"), BY_FILE)
    assert not never.exists
    Path(at(home), "store").unlink()
    lost = VaultStore(at(home), BY_FILE)
    assert lost.exists
    assert refusal(lost.unlock) == "CW-VAULT-MISSING"
    assert refusal(lost.init) == "CW-VAULT-EXISTS"
    Path(at(home), "seen").unlink()
    assert not lost.exists


# Projects


@pytest.mark.requirement("SEC-3")
def test_secret_of_a_project_is_lent_to_its_folder_alone(home, vault):
    vault.set("TOKEN", VALUE, project="/srv/shop")
    for inside in ("/srv/shop", "/srv/shop/api"):
        assert vault.lease(["TOKEN"], tool="run", project=inside).uses[0].reveal() == VALUE
    for other in ("", "/srv", "/srv/shop2", "/srv/other/srv/shop", "/"):
        named = {"tool": "run", "project": other}
        assert refusal(vault.lease, ["TOKEN"], **named) == "CW-VAULT-OTHER-PROJECT"
    fresh = again(home)
    assert [each.project for each in fresh.list()] == ["", "/srv/shop"]
    assert refusal(fresh.lease, ["TOKEN"], tool="run") == "CW-VAULT-OTHER-PROJECT"
    fresh.set("TOKEN", VALUE)  # a new value keeps the bound
    assert refusal(fresh.lease, ["TOKEN"], tool="run") == "CW-VAULT-OTHER-PROJECT"
    fresh.rotate("TOKEN", VALUE)
    assert refusal(fresh.lease, ["TOKEN"], tool="run") == "CW-VAULT-OTHER-PROJECT"
    fresh.set("TOKEN", VALUE, project="")
    assert fresh.lease(["TOKEN"], tool="run").uses[0].reveal() == VALUE


@pytest.mark.requirement("SEC-3")
def test_lease_ends_when_the_secret_is_bound_to_another_project(vault):
    lease = vault.lease(["TOKEN"], tool="run", project="/srv/shop")
    assert lease.uses[0].reveal() == VALUE
    vault.set("TOKEN", b"the value of the bank", project="/srv/bank")
    assert refusal(lease.uses[0].reveal) == "CW-VAULT-LEASE-ENDED"


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize(
    "wrong", ["/", "srv", "//srv", "/srv/../etc", "/srv/", "/srv\n", "/" + "x" * 5000]
)
def test_project_is_a_canonical_folder(vault, wrong):
    assert refusal(vault.set, "TOKEN", VALUE, project=wrong) == "CW-VAULT-PROJECT"
