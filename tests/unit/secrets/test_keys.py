"""What opens a vault: a passphrase, a file, the key ring, a command."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest
from argon2.low_level import Type, hash_secret_raw

from cellwall.core.errors import BadInput, VaultError
from cellwall.secrets import keys
from cellwall.secrets.format import Argon2, VaultSettings
from cellwall.secrets.key_storage import KeyFile
from cellwall.secrets.store import VaultStore
from unit.secrets.vaults import (
    BY_FILE,
    OTHER,
    QUICK,
    VALUE,
    again,
    at,
    made,
    passphrase,
    resealed_frame,
)

KEY_TEXT = "0123456789abcdef0123456789abcdef"


def by_command(text: str, code: int = 0) -> VaultSettings:
    script = f"import sys; sys.stdout.write({text!r}); sys.exit({code})"
    return VaultSettings(key="command", key_command=(sys.executable, "-c", script))


class Ring(keyring.backend.KeyringBackend):
    """The system's key ring, in memory."""

    priority = 1.0  # type: ignore[assignment]

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service, username):
        if self.is_locked:
            raise keyring.errors.KeyringLocked("locked")
        return self.held.get((service, username))

    def set_password(self, service, username, password):
        self.held[service, username] = password

    def delete_password(self, service, username):
        del self.held[service, username]


@pytest.fixture
def ring() -> Ring:
    before, ours = keyring.get_keyring(), Ring()
    keyring.set_keyring(ours)
    yield ours
    keyring.set_keyring(before)


def refused(vault: VaultStore, secret: bytearray | None = None) -> str:
    with pytest.raises(VaultError) as caught:
        vault.unlock(secret)
    assert not vault.is_unlocked
    return caught.value.code


@pytest.mark.requirement("SEC-1")
@pytest.mark.parametrize("settings", [QUICK, BY_FILE, by_command(KEY_TEXT + "\n")])
def test_each_kind_opens_what_it_sealed(home, settings):
    made(home, settings)
    vault = again(home, settings)
    assert (vault.source, vault.values()["TOKEN"], vault.values()["OTHER"]) == (
        settings.key,
        VALUE,
        OTHER,
    )


@pytest.mark.requirement("SEC-1")
def test_the_hash_is_argon2id_with_the_stored_cost():
    buffer, cost = bytearray(32), Argon2(64, 2, 1)
    keys._argon2id_into(passphrase(), b"s" * 16, cost, buffer)
    assert buffer == hash_secret_raw(bytes(passphrase()), b"s" * 16, 2, 64, 1, 32, Type.ID)


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("wrong", ["correct horse batterz", "", "correct horse battery "])
def test_another_passphrase_is_a_wrong_key(home, wrong):
    made(home, QUICK)
    assert refused(VaultStore(at(home), QUICK), passphrase(wrong)) == "CW-VAULT-WRONG-KEY"
    assert refused(VaultStore(at(home), QUICK)) == "CW-VAULT-NO-KEY"


@pytest.mark.parametrize("text", ["", "short", "x" * 1025])
def test_a_passphrase_has_bounds(home, text):
    vault = VaultStore(at(home), QUICK)
    with pytest.raises(BadInput) as caught:
        vault.init(passphrase(text))
    assert (caught.value.code, vault.exists) == ("CW-VAULT-PASSPHRASE", False)


@pytest.mark.requirement("SEC-1")
def test_the_cost_of_a_guess_is_raised_and_never_lowered(home):
    vault = made(home, QUICK)
    dearer = replace(QUICK, argon2_memory_kib=128, argon2_passes=2)
    vault = again(home, dearer)
    assert vault.is_weaker
    generation = vault.generation
    vault.strengthen(passphrase())
    assert not vault.is_weaker
    assert (vault.generation, vault.values()["TOKEN"]) == (generation + 1, VALUE)
    cheap = again(home, QUICK)
    assert not cheap.is_weaker
    cheap.strengthen(passphrase())
    assert not again(home, dearer).is_weaker


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("cost", [b"[1048577,1,1]", b"[64,17,1]", b"[4194304,100,64]"])
def test_a_forged_file_cannot_ask_for_all_memory_or_hours(home, cost):
    made(home, QUICK)
    path = Path(at(home), "store")
    data = path.read_bytes()
    assert data.count(b'"argon2id":[64,1,1]') == 1
    path.write_bytes(resealed_frame(data.replace(b"[64,1,1]", cost)))
    assert refused(VaultStore(at(home), QUICK), passphrase()) == "CW-VAULT-COST"
    # What is within the bounds is tried, and is another key.
    path.write_bytes(resealed_frame(data.replace(b"[64,1,1]", b"[64,16,1]")))
    assert refused(VaultStore(at(home), QUICK), passphrase()) == "CW-VAULT-WRONG-KEY"


def test_a_configuration_may_ask_for_more_than_a_file_may(home):
    made(home, replace(QUICK, argon2_passes=17))
    assert refused(VaultStore(at(home), QUICK), passphrase()) == "CW-VAULT-COST"
    assert again(home, replace(QUICK, argon2_passes=17)).is_unlocked


@pytest.mark.parametrize(
    ("settings", "is_cheap"),
    [
        (VaultSettings(), False),
        (VaultSettings(argon2_memory_kib=19_456, argon2_passes=2, argon2_lanes=1), False),
        (VaultSettings(argon2_memory_kib=19_455), True),
        (VaultSettings(argon2_passes=1), True),
        (VaultSettings(key="file", argon2_passes=1), False),
    ],
)
def test_what_is_advised_at_least_is_known(settings, is_cheap):
    assert settings.is_cheap_to_guess is is_cheap


# Files


def test_the_key_file_is_private_and_the_vault_says_which_key(home):
    made(home)
    path = home / "vault-key"
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    assert len(lines) == 1
    made_elsewhere = home / "elsewhere"
    made_elsewhere.mkdir(mode=0o700)
    # Two vaults, one file: each has its own line.
    shared = VaultSettings(key="file", key_file=str(path))
    made(made_elsewhere, shared)
    assert len(path.read_text().splitlines()) == 2
    assert again(home).values() == again(made_elsewhere, shared).values()
    again(home).rekey()
    assert len(path.read_text().splitlines()) == 2
    assert lines[0] not in path.read_text()
    again(made_elsewhere, shared)


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_file_that_others_can_reach_is_refused(home, mode):
    made(home)
    (home / "vault-key").chmod(mode)
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-UNSAFE"


def test_a_key_file_that_is_a_link_a_pipe_or_gone_is_refused(home, tmp_path):
    made(home)
    path = home / "vault-key"
    path.rename(home / "moved")
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-NO-KEY"
    path.symlink_to(home / "moved")
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-UNSAFE"
    path.unlink()
    os.mkfifo(path, 0o600)
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-UNSAFE"
    path.unlink()
    path.mkdir(mode=0o700)
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-UNSAFE"
    path.rmdir()
    (home / "moved").rename(path)
    assert again(home).is_unlocked


@pytest.mark.parametrize("text", ["nonsense", "a b c\n", "\0" * 100])
def test_a_file_that_we_have_not_made_is_not_used_and_not_replaced(home, text):
    path = home / "vault-key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(VaultError) as caught:
        VaultStore(at(home), BY_FILE).init()
    assert (caught.value.code, path.read_text()) == ("CW-VAULT-NO-KEY", text)


def test_the_key_of_another_vault_is_a_wrong_key(home):
    made(home)
    path = home / "vault-key"
    vault, key_id, _ = path.read_text().split()
    path.write_text(f"{vault} {key_id} {'A' * 43}=\n")
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-WRONG-KEY"
    path.write_text(f"{vault} {key_id} {'A' * 44}\n")
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-NO-KEY"


@pytest.mark.requirement("SEC-6")
def test_two_vaults_with_one_key_file_do_not_lose_each_others_keys(home, monkeypatch):
    elsewhere = home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    shared = VaultSettings(key="file", key_file=str(home / "vault-key"))
    vault, other = made(home), made(elsewhere, shared)
    real, met = KeyFile.write, []

    def write(self: KeyFile, owner: str, keys: dict) -> None:
        # At the worst moment: the first has read, and has not yet written.
        monkeypatch.setattr(KeyFile, "write", real)
        with pytest.raises(VaultError) as caught:
            other.rekey()
        met.append(caught.value.code)
        real(self, owner, keys)

    monkeypatch.setattr(KeyFile, "write", write)
    monkeypatch.setattr("cellwall.secrets.folder._LOCK_TIMEOUT_S", 0.05)
    vault.rekey()
    assert met == ["CW-VAULT-BUSY"]
    other.rekey()
    assert again(home).values() == again(elsewhere, shared).values()
    assert len((home / "vault-key").read_text().splitlines()) == 2


@pytest.mark.requirement("SEC-4", "SEC-6")
def test_a_draft_of_the_key_file_is_swept_by_whoever_opens_the_vault_next(home):
    made(home)
    draft = home / ".draft.vault-key"
    draft.write_bytes((home / "vault-key").read_bytes())
    with draft.open("rb") as still_open:
        again(home)
        assert not draft.exists()
        # Not only its name is gone.
        assert not any(still_open.read())
    assert any((home / "vault-key").read_bytes())


def test_where_no_file_can_be_without_a_name_a_draft_does(home, monkeypatch):
    real = os.open

    def no_unnamed(path: str, flags: int, *words: int, **named: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refusals.append(path)
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *words, **named)

    refusals: list[str] = []
    monkeypatch.setattr(os, "open", no_unnamed)
    made(home).rekey()
    assert again(home).values()["TOKEN"] == VALUE
    assert refusals
    assert sorted(os.listdir(home)) == [".vault-key.lock", "vault", "vault-key"]
    assert (home / "vault-key").stat().st_mode & 0o777 == 0o600


def test_a_key_file_of_which_a_part_would_be_lost_is_refused(home):
    made(home)
    path = home / "vault-key"
    own = path.read_bytes()
    path.write_bytes(own * (64 * 1024 // len(own)))
    assert again(home).is_unlocked
    path.write_bytes(own * (64 * 1024 // len(own) + 1))
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-NO-KEY"


# Commands


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (by_command(KEY_TEXT.swapcase()), "CW-VAULT-WRONG-KEY"),
        (by_command(KEY_TEXT, code=3), "CW-VAULT-NO-KEY"),
        (by_command("short"), "CW-VAULT-NO-KEY"),
        (by_command("x" * 5000), "CW-VAULT-NO-KEY"),
        (VaultSettings(key="command", key_command=("/does/not/exist",)), "CW-VAULT-NO-KEY"),
        (VaultSettings(key="command"), "CW-VAULT-NO-KEY"),
    ],
)
def test_a_command_that_prints_no_key_opens_nothing(home, settings, code):
    made(home, by_command(KEY_TEXT))
    assert refused(VaultStore(at(home), settings)) == code
    assert again(home, by_command(KEY_TEXT)).is_unlocked


def test_a_command_that_never_ends_is_ended(home, monkeypatch):
    made(home, by_command(KEY_TEXT))
    monkeypatch.setattr("cellwall.secrets.keys._COMMAND_TIMEOUT_S", 0.2)
    endless = VaultSettings(key="command", key_command=("sleep", "1000"))
    assert refused(VaultStore(at(home), endless)) == "CW-VAULT-NO-KEY"


def test_the_vault_cannot_name_a_command_of_its_own(home):
    # The kind stands in the vault; program, file and ring are the configuration's.
    made(home, by_command(KEY_TEXT))
    assert KEY_TEXT.encode() not in Path(at(home), "store").read_bytes()
    assert refused(VaultStore(at(home), BY_FILE)) == "CW-VAULT-NO-KEY"


# The key ring


def test_the_ring_holds_one_entry_for_each_vault(home, ring):
    settings = VaultSettings(key="keyring")
    made(home, settings)
    assert [service for service, _ in ring.held] == ["cellwall-vault"]
    before = dict(ring.held)
    vault = again(home, settings)
    vault.rekey()
    assert ring.held.keys() == before.keys()
    assert ring.held != before
    assert all(len(text.splitlines()) == 1 for text in ring.held.values())
    assert again(home, settings).values()["TOKEN"] == VALUE
    ring.is_locked = True
    assert refused(VaultStore(at(home), settings)) == "CW-VAULT-NO-KEY"


@pytest.mark.parametrize(
    "home_of_backend", ["keyring.backends.null", "keyring.backends.fail", "keyrings.alt.file"]
)
def test_a_ring_that_keeps_nothing_safe_is_refused(home, ring, monkeypatch, home_of_backend):
    monkeypatch.setattr(Ring, "__module__", home_of_backend)
    with pytest.raises(VaultError) as caught:
        VaultStore(at(home), VaultSettings(key="keyring")).init()
    assert (caught.value.code, ring.held) == ("CW-VAULT-NO-KEY", {})


def test_without_the_library_it_is_told_how_to_get_it(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(VaultError) as caught:
        VaultStore(at(home), VaultSettings(key="keyring")).init()
    assert "cellwall[keyring]" in caught.value.hint
