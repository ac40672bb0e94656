"""Keys and certificates of pods, made before another program starts Ray there (`fleet certify`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from socket import SOCK_STREAM

import anyio

from cellwall.admin.database import DatabaseAdmin
from cellwall.admin.fleet import check_fleet_settings
from cellwall.admin.fleet_trust import stored_certificate, trust_of_first
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError
from cellwall.fleet.enrolment import LOOPBACK_NAMES, JoinToken
from cellwall.fleet.enrolment_service import enrol
from cellwall.fleet.identity import (
    CA_FILE,
    TLS_FILE,
    fleet_folder,
    open_host_keys,
    replace_private_file,
)
from cellwall.runtime.home import local_principal
from cellwall.storage.service_id import service_id_of

_MAX_FILE_BYTES = 64 * 1024


async def certify_first(home: str, settings: Settings, names: Sequence[str]) -> None:
    """What a first host in a pod needs before Ray starts there."""
    check_fleet_settings(settings)
    DatabaseAdmin(home, settings).prepare(local_principal("cli"))
    given = settings.fleet.token_file
    await trust_of_first(home, settings, given, names=(*LOOPBACK_NAMES, *names))


async def certify_pod(
    home: str, settings: Settings, *, first: str, token_file: str, authority_file: str
) -> None:
    """A certificate for this pod from the first host (HOST:PORT), by the token that the cluster has
    made for the pod. Nothing is asked where a valid one is there: an init container may run
    twice."""
    keys, address = open_host_keys(home, service_id_of(home)), settings.fleet.node_address
    with suppress(CellwallError):
        stored_certificate(home, keys, address)
        return
    text, authority = (_read_text(path) for path in (token_file, authority_file))
    host, _, port = first.rpartition(":")
    if not port.isdecimal():
        raise BadInput("the address of the first host is no HOST:PORT")
    try:
        found = await anyio.getaddrinfo(host, int(port), type=SOCK_STREAM)
    except OSError as error:
        raise CellwallError(
            f"the name of the first host is unknown: {host[:80]}",
            hint="Check the service of the front, and that the front runs.",
            code="CW-FLEET-NODE",
            detail=str(error),
        ) from None
    token = JoinToken.of_pod(text, authority=authority, host=found[0][4][0], port=int(port))
    got = await enrol(keys, token, address=address)
    folder = fleet_folder(home)
    replace_private_file(os.path.join(folder, CA_FILE), got.authority.encode())
    replace_private_file(os.path.join(folder, TLS_FILE), got.certificate.encode())


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError):
        raise BadInput(
            f"the file cannot be read: {path[:200]}",
            hint="Check the mounts of this pod.",
            code="CW-FLEET-TOKEN",
        ) from None
