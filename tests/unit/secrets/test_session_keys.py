"""Keys of sessions: who can read, what destroys them, and what a crash or a fork leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.core.errors import VaultError
from cellwall.secrets.key_slots import SLOT_BYTES, session_digest
from cellwall.secrets.recipients import VaultKey
from cellwall.secrets.session_keys import SessionKeys

pytestmark = pytest.mark.requirement("FS-5")
VAULT, OTHER = "vlt_0123456789abcdefghjk", "vlt_zzzzzzzzzzzzzzzzzzzz"
KEY = bytes(range(32))


_opened: list[SessionKeys] = []


def open_keys(home: Path, vault_key: VaultKey | None = None) -> SessionKeys:
    _opened.append(SessionKeys(str(home), vault_key))
    return _opened[-1]


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def refusal(work) -> str:
    with pytest.raises(VaultError) as caught:
        work()
    return caught.value.code


def slots(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(home.glob("session-keys/*.keys")))


def test_what_one_process_seals_another_reads_and_only_in_its_place(tmp_path):
    name, sealed = open_keys(tmp_path).seal("sbx_1", b"canary", b"place")
    reader = open_keys(tmp_path)
    assert reader.unseal(name, sealed, b"place") == b"canary"
    assert refusal(lambda: reader.unseal(name, sealed, b"elsewhere")) == "CW-SESSION-DAMAGED"
    assert refusal(lambda: reader.unseal(name, sealed[:-1], b"place")) == "CW-SESSION-DAMAGED"
    assert refusal(lambda: reader.unseal(name, b"", b"place")) == "CW-SESSION-DAMAGED"


def test_no_two_sessions_and_no_two_processes_share_a_key(tmp_path):
    one, two = open_keys(tmp_path), open_keys(tmp_path)
    names = {keys.seal(f"sbx_{n}", b"", b"")[0] for keys in (one, two) for n in range(200)}
    assert len(names) == 400
    assert one.seal("sbx_7", b"", b"")[0] == one.seal("sbx_7", b"", b"")[0]


def test_a_destroyed_key_reads_nothing_in_any_process_and_is_not_used_again(tmp_path):
    one, two = open_keys(tmp_path), open_keys(tmp_path)
    first = one.seal("sbx_1", b"canary", b"")
    second = two.seal("sbx_1", b"canary", b"")
    kept = one.seal("sbx_2", b"kept", b"")
    assert [keys.unseal(*each, b"") for keys in (one, two) for each in (first, second)] == [
        b"canary"
    ] * 4
    assert open_keys(tmp_path).destroy("sbx_1") == 2
    for keys in (one, two, open_keys(tmp_path)):  # also with the key in a cache
        for each in (first, second):
            assert refusal(lambda k=keys, e=each: k.unseal(*e, b"")) == "CW-SESSION-ERASED"
        assert keys.unseal(*kept, b"") == b"kept"
    again = one.seal("sbx_1", b"later", b"")
    assert again[0] != first[0]
    assert two.unseal(*again, b"") == b"later"


def test_the_slot_of_a_destroyed_key_is_overwritten_on_the_disk(tmp_path):
    keys = open_keys(tmp_path)
    name, _ = keys.seal("sbx_1", b"canary", b"")
    number = int(name[:8], 16)
    wrapped = slots(tmp_path)[number * SLOT_BYTES :][:SLOT_BYTES]
    assert session_digest("sbx_1") in wrapped
    keys.destroy("sbx_1")
    assert slots(tmp_path)[number * SLOT_BYTES :][:SLOT_BYTES] == b"\xff" * SLOT_BYTES
    assert wrapped[-48:-16] not in slots(tmp_path)


def test_a_key_whose_session_was_not_flushed_is_found_by_its_name(tmp_path):
    keys = open_keys(tmp_path)
    sealed = keys.seal("sbx_1", b"canary", b"")
    path = next(tmp_path.glob("session-keys/*.keys"))
    path.write_bytes(path.read_bytes().replace(session_digest("sbx_1"), bytes(16)))
    reader = open_keys(tmp_path)
    assert reader.destroy("sbx_1") == 0
    assert reader.unseal(*sealed, b"") == b"canary"
    assert reader.destroy("sbx_1", [sealed[0]]) == 1
    assert refusal(lambda: reader.unseal(*sealed, b"")) == "CW-SESSION-ERASED"


@pytest.mark.parametrize("name", ["", "x", "00000000-" + "0" * 31, "../../etc/passwd", "0" * 41])
def test_a_malformed_name_reads_nothing(tmp_path, name):
    keys = open_keys(tmp_path)
    keys.seal("sbx_1", b"", b"")
    assert refusal(lambda: keys.unseal(name, bytes(40), b"")) == "CW-SESSION-DAMAGED"


def test_a_changed_slot_is_damaged_and_a_slot_in_another_place_is_none(tmp_path):
    keys = open_keys(tmp_path)
    one, two = keys.seal("sbx_1", b"1", b""), keys.seal("sbx_2", b"2", b"")
    path = next(tmp_path.glob("session-keys/*.keys"))
    data = bytearray(path.read_bytes())
    first, second = (int(each[0][:8], 16) * SLOT_BYTES for each in (one, two))
    data[first + SLOT_BYTES - 17] ^= 1
    path.write_bytes(data)
    assert refusal(lambda: open_keys(tmp_path).unseal(*one, b"")) == "CW-SESSION-DAMAGED"
    data[first : first + SLOT_BYTES] = data[second : second + SLOT_BYTES]
    path.write_bytes(data)
    assert refusal(lambda: open_keys(tmp_path).unseal(*one, b"")) == "CW-SESSION-ERASED"
    assert open_keys(tmp_path).unseal(*two, b"") == b"2"


def test_a_vault_adopts_the_private_key_and_nothing_in_clear_is_left(tmp_path):
    keys = open_keys(tmp_path)
    before = keys.seal("sbx_1", b"before", b"")
    folder = tmp_path / "session-keys"
    private = (folder / "private").read_bytes()
    keys.adopt(VAULT, KEY)
    assert not (folder / "private").exists()
    assert all(private[2:66] not in path.read_bytes() for path in folder.iterdir())
    writer = open_keys(tmp_path)  # without the vault: it writes, and reads nothing
    after = writer.seal("sbx_2", b"after", b"")
    assert refusal(lambda: writer.unseal(*after, b"")) == "CW-SESSION-LOCKED"
    reader = open_keys(tmp_path, lambda _: KEY)
    assert [reader.unseal(*each, b"") for each in (before, after)] == [b"before", b"after"]
    wrong = open_keys(tmp_path, lambda _: bytes(32))
    assert refusal(lambda: wrong.unseal(*after, b"")) == "CW-SESSION-LOCKED"
    keys.adopt(OTHER, bytes(32))  # a second vault, in place of a lost one
    later = open_keys(tmp_path).seal("sbx_3", b"later", b"")
    both = {VAULT: KEY, OTHER: bytes(32)}
    reader = open_keys(tmp_path, both.__getitem__)
    found = [reader.unseal(*each, b"") for each in (before, after, later)]
    assert found == [b"before", b"after", b"later"]


def test_an_interrupted_adoption_is_completed(tmp_path):
    keys = open_keys(tmp_path)
    before = keys.seal("sbx_1", b"before", b"")
    private = (tmp_path / "session-keys" / "private").read_bytes()
    keys.adopt(VAULT, KEY)
    (tmp_path / "session-keys" / "private").write_bytes(private)  # killed before it was removed
    (tmp_path / "session-keys" / "private").chmod(0o600)
    keys.adopt(VAULT, KEY)
    assert not (tmp_path / "session-keys" / "private").exists()
    assert open_keys(tmp_path, lambda _: KEY).unseal(*before, b"") == b"before"


def test_a_forked_child_gives_no_reserved_key_of_its_parent_to_a_session(tmp_path):
    keys = open_keys(tmp_path)
    for number in range(4):  # 1 + 2 + 4 reserved, 4 used
        keys.seal(f"sbx_{number}", b"", b"")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, keys.seal("sbx_child", b"", b"")[0].encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        assert file.read() != keys.seal("sbx_parent", b"", b"")[0]


_WRITER = """
import sys
from cellwall.secrets.session_keys import SessionKeys
keys, number = SessionKeys(sys.argv[1]), 0
while True:
    number += 1
    name, sealed = keys.seal(f"sbx_{sys.argv[2]}_{number}", b"canary", b"")
    print(name, sealed.hex(), flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_every_key_it_has_named(tmp_path):
    for kill in range(3):
        words = [sys.executable, "-c", _WRITER, str(tmp_path), str(kill)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(70 + 17 * kill)]
            writer.send_signal(signal.SIGKILL)
        keys = open_keys(tmp_path)
        for line in lines:
            name, sealed = line.split()
            assert keys.unseal(name, bytes.fromhex(sealed), b"") == b"canary"


def test_threads_share_one_key_for_one_session(tmp_path):
    keys, names = open_keys(tmp_path), set()
    threads = [
        threading.Thread(target=lambda: names.add(keys.seal("sbx_1", b"", b"")[0]))
        for _ in range(16)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(names) == 1


def test_retention_destroys_keys_by_the_time_of_their_last_use(tmp_path, monkeypatch):
    keys, now_s = open_keys(tmp_path), time.time()
    old = keys.seal("sbx_1", b"old", b"")
    monkeypatch.setattr(time, "time", lambda: now_s + 10 * 86_400)
    new = keys.seal("sbx_1", b"new", b"")  # the same session has another key by then
    assert new[0] != old[0]
    assert keys.count_expired(now_s + 86_400 - 7200) == 0  # it may have been used for a day
    assert keys.expire(now_s + 9 * 86_400) >= 1
    assert refusal(lambda: keys.unseal(*old, b"")) == "CW-SESSION-ERASED"
    assert keys.unseal(*new, b"") == b"new"


def test_nothing_is_sealed_without_a_durable_key(tmp_path):
    (tmp_path / "session-keys").mkdir(mode=0o755)  # open to others: refused
    (tmp_path / "session-keys").chmod(0o755)
    keys = open_keys(tmp_path)
    assert refusal(lambda: keys.seal("sbx_1", b"canary", b"")) == "CW-SESSION-KEYS"
