"""The file of a bundle: whole or not there, and no byte of it can be changed (OBS-3)."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cellwall.admin import bundle_check, bundle_file
from cellwall.admin.bundle_check import check_bundle
from cellwall.admin.bundle_file import (
    FORMAT,
    BadBundle,
    PayloadDigest,
    add_member,
    new_bundle,
    open_bundle,
)
from cellwall.admin.bundle_seals import BundleSeal, PassphraseSeal, RecipientSeal
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.keys import SigningKey, make_key
from cellwall.core.notes import signed_note

pytestmark = pytest.mark.requirement("OBS-3")


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(str(tmp_path / "keys" / "log.pem"), "cellwall-audit")


def write(path: Path, key: SigningKey, seal: BundleSeal | None = None, **members: bytes) -> None:
    def sign(digest: PayloadDigest) -> bytes:
        stated = f"{digest.name} {digest.size} {digest.sha256}"
        lines = (FORMAT, "created now", "origin x", "since 1", stated)
        return signed_note("".join(f"{line}\n" for line in lines), key)

    with new_bundle(str(path), seal, sign) as made:
        for name, data in (members or {"report.json": b"{}"}).items():
            add_member(made, name, data)


def contents(path: Path, seal: BundleSeal | None = None) -> dict[str, bytes]:
    with open_bundle(str(path)) as bundle, bundle.members(seal) as members:
        return {each.name: members.extractfile(each).read() for each in members}  # type: ignore[union-attr]  # regular files


@pytest.mark.slow
def test_every_changed_byte_is_noticed(tmp_path: Path, key: SigningKey) -> None:
    """An audit log is missing, so that even the whole file is refused, but for that reason."""
    path = tmp_path / "b.tar"
    write(path, key, a=b"x" * 3000)
    whole = path.read_bytes()
    with pytest.raises(BadBundle, match="audit log"):
        check_bundle(str(path), [str(key.public)], None)
    headers, note = _headers(whole)
    padding = range(note - 100, note)
    for at in [*headers, *padding, *range(512, len(whole), 97)]:
        changed = bytearray(whole)
        changed[at] ^= 1
        if at in headers:
            _make_valid(changed, at // 512 * 512)
        path.write_bytes(changed)
        with pytest.raises(BadBundle, match=r"^(?!.*audit log)"):
            check_bundle(str(path), [str(key.public)], None)
    for cut in (whole[:-1300], whole[:2000], b"", whole + b"x", whole + whole):
        path.write_bytes(cut)
        with pytest.raises(BadBundle, match=r"^(?!.*audit log)"):
            check_bundle(str(path), [str(key.public)], None)


def _headers(whole: bytes) -> tuple[list[int], int]:
    """Every third byte of both headers of the archive, and where the second one begins."""
    payload_size = int(whole[124:135], 8)
    note = 512 + -(-payload_size // 512) * 512
    fields = [at for at in range(0, 512, 3) if not 148 <= at < 156]  # the checksum is made again
    return [*fields, *(note + at for at in fields)], note


def _make_valid(archive: bytearray, at: int) -> None:
    """Compute the checksum of a header again, as who changes it would."""
    header = archive[at : at + 512]
    header[148:156] = b" " * 8
    archive[at + 148 : at + 156] = b"%06o\0 " % sum(header)


def test_a_bundle_of_another_key_is_refused(tmp_path: Path, key: SigningKey) -> None:
    path, other = tmp_path / "b.tar", make_key(str(tmp_path / "other" / "k.pem"), "cellwall-audit")
    write(path, other)
    with pytest.raises(BadBundle, match="no known key"):
        check_bundle(str(path), [str(key.public)], None)


def pem(private: X25519PrivateKey) -> tuple[RecipientSeal, RecipientSeal]:
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return RecipientSeal.from_pem(public), RecipientSeal.from_pem(text)


@pytest.mark.slow
def test_a_sealed_payload_opens_for_its_recipient_alone(tmp_path: Path, key: SigningKey) -> None:
    public, private = pem(X25519PrivateKey.generate())
    stranger = pem(X25519PrivateKey.generate())[1]
    data = os.urandom(200_000)
    for name, seal, opener, wrong in (
        ("p", PassphraseSeal(b"one"), PassphraseSeal(b"one"), PassphraseSeal(b"two")),
        ("r", public, private, stranger),
    ):
        path = tmp_path / name
        write(path, key, seal, big=data, empty=b"")
        assert data[:64] not in path.read_bytes()
        assert contents(path, opener) == {"big": data, "empty": b""}
        for refused in (wrong, None, stranger if name == "p" else PassphraseSeal(b"one")):
            with pytest.raises(BadBundle):
                contents(path, refused)
        with pytest.raises(BadInput):
            contents(path, public) if name == "r" else RecipientSeal.from_pem(b"no key")
        outside = check_bundle(str(path), [str(key.public)], None)  # without the recipient's key
        assert (outside.is_opened, outside.origin) == (False, "x")


def test_a_failure_leaves_no_file(
    tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    write(place / "kept.tar", key)
    with pytest.raises(BadInput):
        write(place / "kept.tar", key, other=b"x")  # never replaced
    assert list(contents(place / "kept.tar")) == ["report.json"]
    written = bundle_file.write_all

    def full(file: int, data: bytes) -> None:
        written(file, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle_file, "write_all", full)
    for without_tmpfile in (False, True):
        if without_tmpfile:  # as on NFS
            monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
        with pytest.raises(CellwallError) as failed:
            write(place / "new.tar", key, big=b"x" * 100_000)
        assert failed.value.code == "CW-INCIDENT-FILE"
        assert os.listdir(place) == ["kept.tar"]
    monkeypatch.setattr(bundle_file, "write_all", written)
    write(place / "named.tar", key)  # the control, on a file system without O_TMPFILE
    assert sorted(os.listdir(place)) == ["kept.tar", "named.tar"]


@pytest.mark.parametrize(
    "name", ["audit/../../escaped", "audit/x", "audit/0000000000000001.index", "audit//etc/passwd"]
)
def test_a_signed_bundle_writes_nothing_elsewhere(
    tmp_path: Path, key: SigningKey, name: str
) -> None:
    path = tmp_path / "b.tar"
    write(path, key, **{name: b"x"})
    with pytest.raises(BadBundle, match="file of another kind"):
        check_bundle(str(path), [str(key.public)], None)


def test_links_in_a_signed_bundle_are_not_followed(tmp_path: Path, key: SigningKey) -> None:
    path, info = tmp_path / "b.tar", tarfile.TarInfo("audit/0000000000000001.jsonl")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"

    def sign(digest: PayloadDigest) -> bytes:
        stated = f"{digest.name} {digest.size} {digest.sha256}"
        return signed_note(f"{FORMAT}\ncreated n\norigin x\nsince 1\n{stated}\n", key)

    with new_bundle(str(path), None, sign) as made:
        made.addfile(info)
    with pytest.raises(BadBundle, match="file of another kind"):
        check_bundle(str(path), [str(key.public)], None)


def test_a_passphrase_header_cannot_ask_for_all_memory() -> None:
    head = {"salt": "AAAAAAAAAAAAAAAAAAAAAA==", "passes": 1, "lanes": 1, "memory_kib": 1 << 30}
    with pytest.raises(ValueError, match=r"^$"):
        PassphraseSeal(b"x").key_of(head)


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"not a bundle", b"\xff" * 600])
def test_other_files_are_no_bundles(tmp_path: Path, key: SigningKey, data: bytes) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    with pytest.raises(BadBundle):
        check_bundle(str(path), [str(key.public)], None)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("payload.tar"))
    path.write_bytes(plain.getvalue())
    with pytest.raises(BadBundle, match=r"note|cut short|no incident|header"):
        check_bundle(str(path), [str(key.public)], None)
    assert bundle_check.FORMAT == FORMAT
