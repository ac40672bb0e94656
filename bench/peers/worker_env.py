"""The environment of the program that uses a peer: with a secret, and with an SSH agent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from peers.job import Place

TOKEN_PREFIX = "peers-token-"
TOKEN = f"{TOKEN_PREFIX}abcdef-a-value-of-the-caller"


def caller_environment(place: Place) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": place.home,
        "USER": "cellwall-peers",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "DEPLOY_TOKEN": TOKEN,
        "SSH_AUTH_SOCK": place.state("agent.sock"),
    }


@contextmanager
def ssh_agent(place: Place) -> Iterator[None]:
    """A socket that listens where an agent would."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place.state("agent.sock"))
        server.listen(64)
        yield
