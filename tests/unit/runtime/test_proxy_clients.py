"""Addresses, tokens and folders of the standalone proxy."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.runtime.proxy_clients import (
    ClientAccess,
    ClientToken,
    ListenAddress,
    client_access,
    client_folders,
)


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    ("text", "shown", "is_loopback"),
    [
        ("127.0.0.1:3128", "127.0.0.1:3128", True),
        ("127.1.2.3:0", "127.1.2.3:0", True),
        ("localhost:80", "127.0.0.1:80", True),
        ("[::1]:80", "[::1]:80", True),
        ("192.168.0.1:80", "192.168.0.1:80", False),
        ("[fe80::1]:80", "[fe80::1]:80", False),
    ],
)
def test_address_is_read(text: str, shown: str, is_loopback: bool) -> None:
    address = ListenAddress.parse(text)
    assert (str(address), address.is_loopback) == (shown, is_loopback)


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    "text",
    [
        *("", "80", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.1:80"),
        *("127.0.0.1:65536", "127.0.0.1:٣", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "host:80"),
        "127.0.0.1:" + "9" * 5000,
    ],
)
def test_address_that_is_not_one_of_this_host_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        ListenAddress.parse(text)
    assert (caught.value.code, len(caught.value.message) < 120) == ("CW-PROXY-LISTEN", True)


def test_port_in_use_is_refused_with_a_hint() -> None:
    with ListenAddress("127.0.0.1", 0).listen() as first:
        port = first.getsockname()[1]
        with pytest.raises(BadInput, match="Address already in use") as caught:
            ListenAddress("127.0.0.1", port).listen()
    assert "another port" in caught.value.hint


@pytest.mark.requirement("NET-8")
def test_token_is_random_safe_in_a_url_and_not_shown() -> None:
    tokens = [ClientToken() for _ in range(100)]
    texts = {token.text for token in tokens}
    assert len(texts) == 100
    assert all(
        len(text) == 43 and text.replace("-", "").replace("_", "").isalnum() for text in texts
    )
    assert not any(token.text in repr(token) for token in tokens)
    access = ClientAccess(client="a", env={"HTTPS_PROXY": "http://a:word@h"}, folder="")
    assert "word" not in repr(access)


@pytest.mark.requirement("NET-8")
def test_folder_has_one_proxy_and_its_files_go_with_it(tmp_path: Path) -> None:
    home = str(tmp_path)
    left = tmp_path / "proxy/a/ca.pem"
    left.parent.mkdir(parents=True)
    left.write_text("of a killed proxy")
    files = {"ca.pem": b"authority"}
    with client_folders(home, ["a", "b"]) as folders:
        assert not left.exists()
        with pytest.raises(BadInput, match="another proxy"), client_folders(home, ["c", "b"]):
            pass
        access = client_access(
            "a", files, {"X": "1"}, url="http://p", folder=folders["a"], seen_at="/seen"
        )
        assert (access.env["X"], access.env["https_proxy"]) == ("1", "http://p")
        assert access.env["SSL_CERT_FILE"] == "/seen/ca.pem"
        assert left.read_bytes() == b"authority"
        assert stat.S_IMODE(os.stat(left).st_mode) & 0o444 == 0o444
        assert (left.parent / "wgetrc").read_text() == "ca_certificate = /seen/ca.pem\n"
    assert os.listdir(left.parent) == []
    with client_folders(home, ["a", "b", "c"]):
        pass


def test_client_whose_tls_is_not_opened_gets_no_authority(tmp_path: Path) -> None:
    folder = str(tmp_path)
    access = client_access(
        "a", {"resolv.conf": b""}, {}, url="http://p", folder=folder, seen_at=None
    )
    assert (access.folder, "SSL_CERT_FILE" in access.env) == ("", False)
    assert os.listdir(folder) == []
