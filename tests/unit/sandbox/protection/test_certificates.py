"""Certificates can be read inside; a `*.pem` with anything else in it counts as a key (FS-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.types import WorkspaceMode
from cellwall.sandbox.files.file_tree import Beneath
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection.certificates import is_public_text
from cellwall.sandbox.protection.covers import covers_for
from cellwall.sandbox.protection.protected_paths import judge_for, load, scan


def block(label: str) -> str:
    return f"-----BEGIN {label}-----\nMIIB\n-----END {label}-----\n"


CERTIFICATE, KEY = block("CERTIFICATE"), block("PRIVATE KEY")


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize(
    ("text", "is_public"),
    [
        (CERTIFICATE, True),
        ("# Issuer: CN=Főtanúsítvány\n" + CERTIFICATE * 3, True),
        (CERTIFICATE + block("X509 CRL") + block("PUBLIC KEY"), True),
        (KEY, False),
        (CERTIFICATE + KEY, False),
        (CERTIFICATE + block("RSA PRIVATE KEY"), False),
        (CERTIFICATE + block("OPENSSH PRIVATE KEY"), False),
        (CERTIFICATE + block("ENCRYPTED PRIVATE KEY"), False),
        (CERTIFICATE + block("OPENVPN STATIC KEY V1").replace("STATIC", "Static"), False),
        (CERTIFICATE + "-----BEGIN PRIVATE KEY-----\ncut", False),
        (CERTIFICATE + "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nx", False),
        (CERTIFICATE + "-----begin private key-----\nx", False),
        (CERTIFICATE.replace("END", "FIN"), False),
        (block("SOMETHING ELSE"), False),
        ("password=x\n", False),
        ("", False),
    ],
)
def test_only_public_blocks_make_a_file_public(text: str, is_public: bool) -> None:
    assert is_public_text(text.encode()) is is_public


@pytest.mark.requirement("FS-4")
def test_only_files_with_keys_are_hidden_and_refused(tmp_path: Path) -> None:
    (tmp_path / "certifi").mkdir()
    (tmp_path / "certifi/cacert.pem").write_text(CERTIFICATE)
    (tmp_path / "server.pem").write_text(CERTIFICATE + KEY)
    (tmp_path / "large.pem").write_text(CERTIFICATE + " " * (5 << 20))
    (tmp_path / "link.pem").symlink_to("certifi/cacert.pem")
    (tmp_path / "id.key").write_text(CERTIFICATE)
    with Beneath.open(tmp_path) as beneath:
        found = scan(beneath, load(), max_entries=100)
        judge = judge_for(load(), Root(beneath.fd))
        judge("certifi/cacert.pem", writing=False)
        for name in ("server.pem", "none.pem"):
            with pytest.raises(Exception, match="such names hold secrets"):
                judge(name, writing=False)
    hidden = {path for kind, path in covers_for(found, WorkspaceMode.READ_ONLY) if kind == "hide"}
    assert hidden == {"server.pem", "large.pem", "link.pem", "id.key"}
