"""What happens to the targets of the host is seen, whatever an attack reports."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.admin.redteam.host_targets import HostFiles, HostServers


def _copy(folder: Path) -> None:
    (folder / "workspace" / "stolen").write_bytes((folder / "secret").read_bytes())


def _link(folder: Path) -> None:
    os.link(folder / "secret", folder / "workspace" / "stolen")


def _move(folder: Path) -> None:
    (folder / "secret.spare").rename(folder / "workspace" / "moved")


def _plant(folder: Path) -> None:
    (folder / "planted").touch()


def _connect(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "docker.sock"))


@pytest.mark.requirement("RED-1")
@pytest.mark.parametrize("deed", [_copy, _link, _move, _plant, _connect])
def test_a_touched_target_is_noticed(deed: Callable[[Path], None], tmp_path: Path) -> None:
    with HostFiles(str(tmp_path)) as targets:
        assert targets.effects() == []
        deed(tmp_path)
        assert targets.effects() != []


@pytest.mark.requirement("RED-1")
def test_contacts_with_servers_of_the_host_are_counted() -> None:
    with HostServers() as servers:
        assert servers.contacts == 0
        with socket.create_connection(("127.0.0.1", servers.facts["ports"]["tcp"]), 5) as line:
            assert line.recv(16) == b"hello"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.settimeout(5)
            line.sendto(b"?", ("127.0.0.1", servers.facts["ports"]["udp"]))
            assert line.recv(16) == b"hello"
        assert servers.contacts == 2
