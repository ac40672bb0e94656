"""Private keys are made once, are their owner's alone, and never shown."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cellwall.core import keys
from cellwall.core.errors import KeyFailed
from cellwall.core.keys import load_key, make_key
from cellwall.core.notes import open_note, signed_note

MAKER = """
import sys
from cellwall.core.keys import make_key
sys.stdin.readline()
print(make_key(sys.argv[1], "it").public)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys" / "it.pem"


def refused(path) -> str:
    with pytest.raises(KeyFailed) as caught:
        load_key(str(path), "it")
    assert caught.value.hint
    assert str(path) not in str(caught.value)
    return caught.value.code


def pem(key, *, password: bytes | None = None) -> bytes:
    seal = serialization.BestAvailableEncryption(password) if password else None
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        seal or serialization.NoEncryption(),
    )


def test_key_is_written_and_read_as_other_programs_do(path):
    made = make_key(str(path), "it")
    text = path.read_bytes()
    other = serialization.load_pem_private_key(text, password=None)
    assert pem(other) == text
    assert other.public_key().public_bytes_raw() == made.public.raw
    for written in (text.replace(b"\n", b"\r\n"), b"a comment\n" + text, text.rstrip(b"\n")):
        path.write_bytes(written)
        assert load_key(str(path), "it").public == made.public


def test_made_key_is_private_durable_and_reads_back(path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(keys.os, "fsync", lambda file: (synced.append(file), real(file)))
    made = make_key(str(path), "it")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["it.pem"]
    assert len(synced) == 2, "the file, then its folder"
    loaded = load_key(str(path), "it")
    assert loaded.public == made.public
    assert open_note(signed_note("text\n", loaded), [made.public])[1] == (made.public,)


def test_no_key_is_ever_replaced(path):
    first = make_key(str(path), "it")
    before = path.read_bytes()
    assert make_key(str(path), "it").public == first.public
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, ["it.pem"])


def test_threads_that_begin_at_once_get_one_key(path):
    barrier, found = threading.Barrier(8), []

    def work():
        barrier.wait()
        found.append(make_key(str(path), "it").public)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found))) == (8, 1)


def test_processes_that_begin_at_once_get_one_key(path):
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for maker in makers:
        maker.stdin.write("go\n")
        maker.stdin.flush()
    found = {maker.communicate()[0] for maker in makers}
    assert found == {f"{load_key(str(path), 'it').public}\n"}


def test_private_part_is_not_shown(path):
    made = make_key(str(path), "it")
    assert repr(made) == f"SigningKey({made.public})"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_key_open_to_others_is_refused(path, mode):
    make_key(str(path), "it")
    path.chmod(mode)
    assert refused(path) == "CW-KEY-UNSAFE"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"\0" * 100,
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem(ec.generate_private_key(ec.SECP256R1())),
        pem(ed25519.Ed25519PrivateKey.generate(), password=b"secret"),
        b"x" * 20_000 + pem(ed25519.Ed25519PrivateKey.generate()),
    ],
)
def test_what_is_no_plain_ed25519_key_is_refused(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    assert refused(path) == "CW-KEY"


def test_key_that_is_no_plain_file_is_refused(path, tmp_path):
    real = tmp_path / "real.pem"
    make_key(str(real), "it")
    path.parent.mkdir()
    path.symlink_to(real)
    assert refused(path) == "CW-KEY"
    path.unlink()
    os.mkfifo(path, 0o600)
    assert refused(path) == "CW-KEY"  # and does not wait for somebody to write into it
    path.unlink()
    path.mkdir(mode=0o700)
    assert refused(path) == "CW-KEY"


def test_missing_key_is_told_as_missing(path):
    with pytest.raises(FileNotFoundError):
        load_key(str(path), "it")


@pytest.mark.parametrize("step", ["fsync", "link", "mkdir"])
def test_failure_on_the_way_leaves_no_key_and_no_draft(path, monkeypatch, step):
    path.parent.mkdir(mode=0o700)

    def fail(*_arguments, **_named):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keys.os, step, fail)
        with pytest.raises(KeyFailed):
            make_key(str(path), "it")
    assert os.listdir(path.parent) == []
