"""Whoever can write to the vault's files, or read this process, and has no key (SEC-1 to SEC-7)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.admin.vault import VaultAdmin as RecordedVault
from cellwall.admin.vault import VaultKeyChoice
from cellwall.core.errors import VaultError
from cellwall.core.outcomes import EventKind
from cellwall.runtime.home import local_principal
from cellwall.secrets.store import VaultStore
from conftest import audit_records
from interfaces.test_cli_process import PROGRAM, cellwall, person
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

pytestmark = pytest.mark.only_on("cold", reason="no cell takes part: the vault is outside of all")
REFUSALS = {
    *("CW-VAULT-TAMPERED", "CW-VAULT-TRUNCATED", "CW-VAULT-WRONG-KEY", "CW-VAULT-SWAPPED"),
    *("CW-VAULT-FORMAT", "CW-VAULT-NO-KEY", "CW-VAULT-ROLLED-BACK"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    made(place)
    return place


def put(home: Path, data: bytes, name: str = "store") -> None:
    path = Path(at(home), name)
    path.write_bytes(data)
    path.chmod(0o600)


def taken(home: Path, name: str = "store") -> bytes:
    return Path(at(home), name).read_bytes()


def code_of(home: Path) -> str:
    """How it is refused; `opened` if it is not. Anything but our own error is a failure."""
    vault = VaultStore(at(home), BY_FILE)
    try:
        vault.unlock()
    except VaultError as error:
        assert not vault.is_unlocked
        assert dict(vault.values()) == {}
        return error.code
    assert vault.values()["TOKEN"] == VALUE
    return "opened"


# Every byte


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("name", ["store", "seen"])
def test_no_byte_of_the_files_can_be_changed(home, name):
    data = taken(home, name)
    found = set()
    for at_byte in range(len(data)):
        bent = bytearray(data)
        bent[at_byte] ^= 1 << at_byte % 8
        put(home, bytes(bent), name)
        found.add(code_of(home))
    assert found <= REFUSALS
    put(home, data, name)
    assert code_of(home) == "opened"


@pytest.mark.requirement("SEC-7")
def test_nor_by_somebody_who_mends_the_digest(home):
    data = taken(home)
    start = data.index(b"\n") + 1
    content = data.index(b"\n", start) + 1
    # Of the opening each byte, since it is read before the MAC; of the rest every third one.
    for at_byte in (*range(start, content), *range(content, len(data), 3)):
        bent = bytearray(data)
        bent[at_byte] ^= 1 << at_byte % 7
        put(home, resealed_frame(bytes(bent)))
        assert code_of(home) in REFUSALS, at_byte
    put(home, resealed_frame(data))
    assert code_of(home) == "opened"


@pytest.mark.requirement("SEC-7")
def test_every_cut_is_told_as_a_cut(home):
    data = taken(home)
    found = set()
    for length in range(0, len(data), 3):
        put(home, data[:length])
        found.add(code_of(home))
    assert found == {"CW-VAULT-TRUNCATED"}
    put(home, data)
    assert code_of(home) == "opened"


# Exchanged


def exchanged(home: Path, *names: str) -> bytes:
    head, first, rest = taken(home).split(b"\n", 2)
    content = json.loads(rest)
    secrets = content["secrets"]["default"]
    one, other = (
        secrets[name.partition("@")[0]]["previous" if "@" in name else "current"] for name in names
    )
    for field in ("nonce", "sealed"):
        one[field], other[field] = other[field], one[field]
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return resealed_frame(b"\n".join([head, first, text]))


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("names", [("TOKEN", "OTHER"), ("TOKEN", "TOKEN@1")])
def test_values_in_each_others_places_are_told(home, names):
    put(home, exchanged(home, *names))
    assert code_of(home) == "CW-VAULT-SWAPPED"


@pytest.mark.requirement("SEC-7")
def test_a_grant_cannot_be_moved_or_widened(home):
    head, first, rest = taken(home).split(b"\n", 2)
    assert b"api.github.com" in rest
    put(
        home,
        resealed_frame(
            b"\n".join([head, first, rest.replace(b"api.github.com", b"evil.github.co")])
        ),
    )
    assert code_of(home) == "CW-VAULT-TAMPERED"


@pytest.mark.requirement("SEC-7")
def test_another_vault_in_its_place_is_told_even_with_the_same_passphrase(tmp_path):
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir(mode=0o700)
        made(tmp_path / name, QUICK)
    shutil.copy(tmp_path / "theirs/vault/store", tmp_path / "mine/vault/store")
    with pytest.raises(VaultError) as caught:
        VaultStore(at(tmp_path / "mine"), QUICK).unlock(passphrase())
    assert caught.value.code == "CW-VAULT-SWAPPED"
    assert again(tmp_path / "theirs", QUICK).is_unlocked


@pytest.mark.requirement("SEC-7")
def test_a_cheaper_hash_in_the_file_opens_nothing(tmp_path):
    tmp_path.chmod(0o700)
    made(tmp_path, QUICK)
    data = taken(tmp_path)
    assert data.count(b'"argon2id":[64,1,1]') == 1
    put(tmp_path, resealed_frame(data.replace(b'"argon2id":[64,1,1]', b'"argon2id":[8,1,1]')))
    with pytest.raises(VaultError) as caught:
        VaultStore(at(tmp_path), QUICK).unlock(passphrase())
    assert caught.value.code == "CW-VAULT-WRONG-KEY"


# Rolled back


@pytest.mark.requirement("SEC-7")
def test_an_older_vault_is_refused_until_a_person_says_that_it_is_theirs(home):
    old = taken(home)
    again(home).revoke("TOKEN")
    put(home, old)
    assert code_of(home) == "CW-VAULT-ROLLED-BACK"
    vault = VaultStore(at(home), BY_FILE)
    vault.unlock(restored=True)
    vault.rekey()
    assert vault.generation > 6  # past what was seen
    assert code_of(home) == "opened"


@pytest.mark.requirement("SEC-7")
def test_a_second_future_of_the_same_generation_is_refused(home):
    before = [taken(home), taken(home, "seen")]
    again(home).set("NEW", b"one future")
    other_future = taken(home)
    put(home, before[0])
    put(home, before[1], "seen")
    again(home).set("NEW", b"another future")
    put(home, other_future)
    assert code_of(home) == "CW-VAULT-ROLLED-BACK"


@pytest.mark.requirement("SEC-7")
def test_without_the_note_of_the_last_generation_nothing_is_opened(home):
    note = taken(home, "seen")
    Path(at(home), "seen").unlink()
    assert code_of(home) == "CW-VAULT-ROLLED-BACK"
    put(home, note, "seen")
    assert code_of(home) == "opened"


@pytest.mark.requirement("SEC-7")
def test_an_older_one_is_refused_also_by_whoever_has_the_vault_open(home):
    old = taken(home)
    vault = again(home)
    lease = vault.lease(["TOKEN"], tool="run")
    assert lease.uses[0].reveal() == VALUE
    again(home).set("NEW", b"value")
    put(home, old)
    for function in (vault.list, vault.values, lease.uses[0].reveal):
        with pytest.raises(VaultError) as caught:
            function()
        assert caught.value.code == "CW-VAULT-ROLLED-BACK"


@pytest.mark.requirement("SEC-7")
def test_who_restores_both_files_is_found_in_the_record_alone(state_home):
    me, folder = local_principal("sdk"), Path(state_home, "vault")
    vault = RecordedVault.configured()
    vault.init(choice=VaultKeyChoice(source="file"), principal=me)
    vault.set("TOKEN", VALUE, me)
    saved = {path.name: path.read_bytes() for path in folder.iterdir()}
    vault.remove("TOKEN", me)
    for name, data in saved.items():
        (folder / name).write_bytes(data)
    restored = RecordedVault.configured()
    assert [each.name for each in restored.list(me)] == ["TOKEN"]  # the limit that the docs tell
    told = [
        record["body"]["generation"]
        for record in audit_records(kind=EventKind.VAULT)
        if "generation" in record["body"]
    ]
    assert (max(told), restored.generation) == (3, 2)


# The files themselves


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("name", ["store", "seen", "lock"])
def test_files_that_others_could_reach_are_refused(home, name):
    path = Path(at(home), name)
    path.chmod(0o644)
    assert code_of(home) == "CW-VAULT-UNSAFE"
    path.chmod(0o600)
    os.link(path, home / "second-name")
    assert code_of(home) == "CW-VAULT-UNSAFE"
    (home / "second-name").unlink()
    assert code_of(home) == "opened"


@pytest.mark.requirement("SEC-7")
def test_links_pipes_and_folders_in_their_place_are_refused_at_once(home, tmp_path):
    path = Path(at(home), "store")
    real = path.rename(home / "real")
    path.symlink_to(real)
    assert code_of(home) == "CW-VAULT-UNSAFE"
    path.unlink()
    os.mkfifo(path, 0o600)  # opening it must not wait for a writer
    assert code_of(home) == "CW-VAULT-UNSAFE"
    path.unlink()
    assert code_of(home) == "CW-VAULT-MISSING"
    path.mkdir(mode=0o700)
    before = os.listdir("/proc/self/fd")
    assert code_of(home) == "CW-VAULT-UNSAFE"
    assert os.listdir("/proc/self/fd") == before
    path.rmdir()
    real.rename(path)
    Path(at(home)).chmod(0o755)
    assert code_of(home) == "CW-VAULT-UNSAFE"
    Path(at(home)).chmod(0o700)
    folder = Path(at(home)).rename(home / "folder")
    Path(at(home)).symlink_to(folder)
    assert code_of(home) == "CW-VAULT-UNSAFE"


@pytest.mark.requirement("SEC-7")
def test_a_file_without_end_is_not_read(home):
    with Path(at(home), "store").open("r+b") as file:
        file.truncate(1 << 40)
    assert code_of(home) == "CW-VAULT-TAMPERED"


# What the process leaves behind

# Looks at all of its own memory for words that are told in pieces, so that they are not in the code.
LOOK = """
import gc, os, sys
from cellwall.secrets.store import VaultStore
from cellwall.secrets.format import VaultSettings

def is_in_memory(word_backwards):
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps.read().splitlines():
            span, rights, *_ = line.split()
            if "w" not in rights or "vvar" in line or "vsyscall" in line:
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            room = bytearray(end - start)
            memory.seek(start)
            try:
                memory.readinto(room)
            except OSError:
                continue
            room.reverse()
            found += room.count(word_backwards)
            room[:] = bytes(len(room))
    # The buffer of the search itself was wiped, and its word stands backwards.
    return found > 0

vault = VaultStore(sys.argv[1], VaultSettings(key="command", key_command=("cat", sys.argv[2])))
"""


def looked(script: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK + script, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "printed-key"
    path.write_bytes(base64.b64encode(os.urandom(30)))
    return str(path)


@pytest.mark.requirement("SEC-4")
def test_no_key_is_left_in_memory_after_the_lock(tmp_path, key_file):
    script = """
vault.init()
page = vault._handle.page
names = ("vault", "seal", "sign", "digest", "watch")
backwards = []
for name in names:
    key = bytearray(page.buffer(name)); key.reverse(); backwards.append(key)
print([is_in_memory(each) for each in backwards])
vault.set("TOKEN", bytearray(os.urandom(40)))
vault.rotate("TOKEN", bytearray(os.urandom(40)))
vault.lock()
del page
gc.collect()
print([is_in_memory(each) for each in backwards])
"""
    tmp_path.chmod(0o700)
    found = looked(script, at(tmp_path), key_file).splitlines()
    assert found == [str([True] * 5), str([False] * 5)]


@pytest.mark.requirement("SEC-4")
def test_a_value_that_was_stored_is_not_left_in_memory(tmp_path, key_file):
    script = """
vault.init()
value = bytearray(48)
with open("/dev/urandom", "rb", buffering=0) as source:
    source.readinto(value)
backwards = bytearray(value); backwards.reverse()
print(is_in_memory(backwards))
vault.set("TOKEN", value)
value[:] = bytes(48)
print(is_in_memory(backwards))
vault.rekey()
print(is_in_memory(backwards))
from cellwall.core.network import Binding
vault.grant("TOKEN", Binding(host="a.example.com"))
with vault.lease(["TOKEN"], tool="run") as lease:
    handed_out = lease.uses[0].reveal()
    print(is_in_memory(backwards))
"""
    tmp_path.chmod(0o700)
    # Only while its owner holds it, and once it was handed out for the wire.
    assert looked(script, at(tmp_path), key_file).split() == ["True", "False", "False", "True"]


@pytest.mark.requirement("SEC-4")
def test_a_passphrase_is_not_left_in_memory(tmp_path, key_file):
    script = """
settings = VaultSettings(argon2_memory_kib=64, argon2_passes=1, argon2_lanes=1)
vault = VaultStore(sys.argv[1], settings)
words = bytearray(40)
with open("/dev/urandom", "rb", buffering=0) as source:
    source.readinto(words)
backwards = bytearray(words); backwards.reverse()
vault.init(words)
vault.lock()
vault.unlock(words)
print(is_in_memory(backwards))
words[:] = bytes(40)
print(is_in_memory(backwards), vault.is_unlocked)
"""
    tmp_path.chmod(0o700)
    assert looked(script, at(tmp_path), key_file).split() == ["True", "False", "True"]


def forms(value: bytes) -> Iterator[bytes]:
    yield value
    yield value.hex().encode()
    for shift in range(3):
        text = base64.b64encode(b"x" * shift + value)
        yield text[4:-4]


def holders(place: Path, value: bytes) -> list[str]:
    found = []
    for path in place.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [path.name for form in forms(value) if form in data]
    return found


@pytest.mark.requirement("SEC-2", "SEC-4", "GRD-5")
def test_a_value_is_in_no_argument_variable_file_log_or_record(state_home, tmp_path):
    home = Path(state_home)
    assert cellwall("vault", "init", "--key", "file").returncode == 0
    with subprocess.Popen(
        [PROGRAM, "vault", "set", "TOKEN"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MARK": "a-mark-that-is-seen"},
    ) as process:
        process.stdin.write(VALUE)
        process.stdin.flush()
        # It waits for the end of its input. Before it has become the program it has neither.
        seen, until = b"", time.monotonic() + 60
        while b"a-mark-that-is-seen" not in seen and time.monotonic() < until:
            seen = (
                Path(f"/proc/{process.pid}/environ").read_bytes()
                + Path(f"/proc/{process.pid}/cmdline").read_bytes()
            )
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"a-mark-that-is-seen" in seen
    done = person("vault", "grant", "TOKEN", "--host", "api.github.com")
    assert done.returncode == 0, done
    shown = [out, err, done.stdout, done.stderr, cellwall("vault", "list", "--json").stdout]
    shown.append(cellwall("audit", "export", "--form", "jsonl", "--to", "-").stdout)
    assert b'"change":"set"' in shown[-1].replace(b" ", b"")
    assert all(form not in b"".join([seen, *shown]) for form in forms(VALUE))
    assert holders(home, VALUE) == []
    # It is there, for whoever has the key; and the look finds what is there.
    vault = again(home)
    assert vault.values() == {"TOKEN": VALUE}
    (home / "control").write_bytes(b"..." + base64.b64encode(VALUE) + b"...")
    assert holders(home, VALUE) == ["control"]


@pytest.mark.requirement("SEC-2")
def test_a_value_on_the_command_line_is_refused_and_not_repeated(state_home):
    assert cellwall("vault", "init", "--key", "file").returncode == 0
    text = VALUE.decode()
    for words in (["TOKEN", text], [f"TOKEN={text}"], ["TOKEN", f"--value={text}"], [text]):
        done = cellwall("vault", "set", *words, stdin=OTHER)
        assert done.returncode == 125
        assert VALUE not in done.stdout + done.stderr, words
    assert holders(Path(state_home), VALUE) == []
    assert again(Path(state_home)).values() == {}
