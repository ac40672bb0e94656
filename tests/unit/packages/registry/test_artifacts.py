"""Artifacts by hash: nothing half-written or forged becomes one (PKG-1, PKG-5)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from cellwall.packages.registry.artifacts import ArtifactRefused, ArtifactStore

DATA = b"wheel" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(str(tmp_path / "artifacts"))


def test_a_file_with_its_hash_is_kept_read_only(store, tmp_path):
    with store.create("sha256", DIGEST) as writer:
        writer.write(DATA[:100])
        assert store.open("sha256", DIGEST) is None
        writer.write(DATA[100:])
    with store.open("sha256", DIGEST) as opened:
        assert opened.read() == DATA
        assert os.fstat(opened.fileno()).st_mode & 0o777 == 0o444


@pytest.mark.requirement("PKG-5")
def test_a_file_with_another_hash_is_refused_and_leaves_nothing(store, tmp_path):
    with pytest.raises(ArtifactRefused) as error, store.create("sha256", DIGEST) as writer:
        writer.write(DATA + b"x")
    assert error.value.code == "CW-PACKAGE-HASH"
    assert store.open("sha256", DIGEST) is None
    assert os.listdir(tmp_path / "artifacts") == []


def test_an_interrupted_download_leaves_nothing(store, tmp_path):
    with pytest.raises(KeyboardInterrupt), store.create("sha256", DIGEST) as writer:
        writer.write(DATA[:10])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path / "artifacts") == []


@pytest.mark.parametrize(
    "digest", ["", "../x", "a" * 63, "A" * 64, "a" * 64 + "\n", "a" * 64 + "/x"]
)
def test_what_is_no_hash_never_becomes_a_path(store, digest):
    with pytest.raises(ValueError, match="not a hash"):
        store.open("sha256", digest)


def test_the_oldest_go_when_the_store_is_full(tmp_path):
    store = ArtifactStore(str(tmp_path), max_bytes=25)
    digests = []
    for number in range(3):
        data = b"%d" % number * 10
        digest = hashlib.sha256(data).hexdigest()
        with store.create("sha256", digest) as writer:
            writer.write(data)
        os.utime(tmp_path / f"sha256-{digest}", (number, number))
        digests.append(digest)
    store.open("sha256", digests[0]).close()  # used again
    assert store.trim() == 20
    left = {name.removeprefix("sha256-") for name in os.listdir(tmp_path)}
    assert left == {digests[0], digests[2]}


@pytest.mark.parametrize("place", ["link", "pipe", "folder"])
def test_what_is_no_file_is_no_artifact(store, tmp_path, place):
    folder = tmp_path / "artifacts"
    folder.mkdir()
    path = folder / f"sha256-{DIGEST}"
    if place == "link":
        (tmp_path / "secret").write_bytes(DATA)
        path.symlink_to(tmp_path / "secret")
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert store.open("sha256", DIGEST) is None
    if place != "folder":
        with store.create("sha256", DIGEST) as writer:
            writer.write(DATA)
        assert path.read_bytes() == DATA
        assert not path.is_symlink()


def test_a_damaged_artifact_is_removed(store, tmp_path):
    with store.create("sha256", DIGEST) as writer:
        writer.write(DATA)
    with store.open("sha256", DIGEST) as opened:
        assert store.check("sha256", DIGEST, opened)
    path = tmp_path / "artifacts" / f"sha256-{DIGEST}"
    path.chmod(0o600)
    path.write_bytes(b"")  # the name without the content, as after a loss of power
    with store.open("sha256", DIGEST) as opened:
        assert not store.check("sha256", DIGEST, opened)
    assert store.open("sha256", DIGEST) is None


def test_no_more_is_written_than_the_index_states(store, tmp_path):
    with (
        pytest.raises(ArtifactRefused) as error,
        store.create("sha256", DIGEST, max_bytes=100) as writer,
    ):
        writer.write(DATA)
    assert error.value.code == "CW-PACKAGE-TOO-LARGE"
    assert os.listdir(tmp_path / "artifacts") == []


def test_a_writer_that_is_killed_leaves_a_draft_that_trim_removes(store, tmp_path):
    folder = tmp_path / "artifacts"
    script = (
        "import os, signal, sys\n"
        "from cellwall.packages.registry.artifacts import ArtifactStore\n"
        f"with ArtifactStore({str(folder)!r}).create('sha256', {DIGEST!r}) as writer:\n"
        f"    writer.write({DATA!r})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert store.open("sha256", DIGEST) is None
    (draft,) = folder.iterdir()
    store.trim()
    assert draft.exists()  # it might be that of a running writer
    os.utime(draft, (1, 1))
    assert store.trim() == 0
    assert not draft.exists()


def test_two_writers_of_one_artifact_leave_one(store, tmp_path):
    with store.create("sha256", DIGEST) as one, store.create("sha256", DIGEST) as other:
        one.write(DATA)
        other.write(DATA)
    assert len(os.listdir(tmp_path / "artifacts")) == 1
