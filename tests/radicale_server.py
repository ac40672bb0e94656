"""A real CalDAV server on loopback, with TLS: Radicale, as its users run it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outside import Outside

HOST = "cal.test.example"
_STARTS_WITHIN_S = 60.0
_COLLECTION = '{"tag": "VCALENDAR", "D:displayname": "work"}'


@dataclass(frozen=True, slots=True)
class CalendarServer:
    """Its users have one calendar each, `/NAME/work/`."""

    port: int
    folder: Path

    def url(self, user: str) -> str:
        return f"https://{HOST}:{self.port}/{user}/work/"

    def files(self, user: str) -> list[str]:
        """The events of a user as the server stores them."""
        place = self.folder / "collections" / "collection-root" / user / "work"
        return [each.read_text() for each in sorted(place.glob("*.ics"))]


@contextmanager
def calendar_server(world: Outside, users: dict[str, str]) -> Iterator[CalendarServer]:
    """Serve these users, by name and password."""
    folder = world.folder / "radicale"
    for user in users:
        place = folder / "collections" / "collection-root" / user / "work"
        place.mkdir(parents=True)
        (place / ".Radicale.props").write_text(_COLLECTION)
    (folder / "users").write_text("".join(f"{name}:{word}\n" for name, word in users.items()))
    certificate = world.authority.issue_cert(HOST)
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    with socket.create_server(("127.0.0.1", 0)) as line:
        port = line.getsockname()[1]
    (folder / "config").write_text(
        f"[server]\nhosts = 127.0.0.1:{port}\nssl = True\n"
        f"certificate = {folder}/cert.pem\nkey = {folder}/key.pem\n"
        f"[auth]\ntype = htpasswd\nhtpasswd_filename = {folder}/users\n"
        "htpasswd_encryption = plain\ndelay = 0\n"
        f"[storage]\nfilesystem_folder = {folder}/collections\n"
        "[rights]\ntype = owner_only\n"
    )
    world.names[HOST] = ["127.0.0.1"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "radicale", "--config", str(folder / "config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"PATH": os.defpath},
        )
    try:
        _wait_for(port, server)
        yield CalendarServer(port, folder)
    finally:
        server.terminate()
        server.wait(_STARTS_WITHIN_S)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except ConnectionRefusedError:
            # Ends the wait at once if the server has ended.
            try:
                server.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        else:
            return
    raise AssertionError("Radicale did not start")
