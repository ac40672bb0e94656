"""Joining over the network: the listener of the first host, and the machine that asks.

One JSON object in each direction, on one line, bounded in size and time. The listener knows two
questions: for the authority's certificate, which is public, and to join.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput, Busy, CellwallError, Denied
from cellwall.core.host_trust import HostTrustPort
from cellwall.core.types import Json
from cellwall.fleet.certificates import FleetAuthority, fingerprint, read_host_certificate
from cellwall.fleet.enrolment import JoinToken, admit, join_request
from cellwall.fleet.identity import HostKeys
from cellwall.fleet.pod_tokens import PodReviewer

MAX_LINE_BYTES = 32 * 1024
_ANSWERS_WITHIN_S = 20.0
_MAX_CONNECTIONS = 32
_MAX_TRIES, _TRIES_WITHIN_S = 30, 60.0
"""Machines that ask to join: each attempt is recorded, so their number is bounded."""
_log = logging.getLogger("cellwall.fleet")

Recording = Callable[[str, str], AbstractContextManager[object]]
"""Around an admission: host and address; a record that cannot be written refuses (AUD-1)."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Enrolled:
    """What a machine has got."""

    certificate: str
    authority: str
    ray_token: str
    ray_address: str


class EnrolmentListener:
    """Lets machines join, on the host that has the authority."""

    def __init__(
        self,
        authority: FleetAuthority,
        trust: HostTrustPort,
        *,
        ray_token: str,
        ray_address: str,
        recording: Recording,
        pods: PodReviewer | None = None,
    ) -> None:
        """`pods`: where pods of a cluster may join."""
        self._pods = pods
        self._authority, self._trust, self._recording = authority, trust, recording
        self._ray_token, self._ray_address = ray_token, ray_address
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._tries: deque[float] = deque(maxlen=_MAX_TRIES)

    @asynccontextmanager
    async def listening(
        self, host: str, port: int, *, certificate: str, key: str
    ) -> AsyncIterator[int]:
        """Listen meanwhile; yields the port."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, key)
        try:
            server = await asyncio.start_server(
                self._answer,
                host,
                port,
                ssl=context,
                limit=MAX_LINE_BYTES,
                ssl_handshake_timeout=_ANSWERS_WITHIN_S,
            )
        except OSError as error:
            raise CellwallError(
                f"the port for machines that join cannot be opened at {host}:{port}",
                hint="Set node_address and join_port in [fleet] to an address of this machine and "
                "a free port.",
                code="CW-FLEET-LISTEN",
                detail=str(error),
            ) from None
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._slots.locked():
                return
            async with self._slots, asyncio.timeout(_ANSWERS_WITHIN_S):
                peer = str(writer.get_extra_info("peername")[0])
                answer = await self._answer_line(await reader.readline(), peer)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            _log.warning("a connection of a machine that joins has failed")
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _answer_line(self, line: bytes, peer: str) -> Mapping[str, Json]:
        try:
            asked = _parse(line)
            if asked.get("ask") == "authority":
                return {"authority": self._authority.pem}
            if asked.get("ask") != "join":
                raise BadInput("the fleet does not know this question", code="CW-FLEET-JOIN")
            self._count_try()
            with self._recording(str(asked.get("host", ""))[:40], peer):
                pem = await admit(
                    asked,
                    peer=peer,
                    authority=self._authority,
                    trust=self._trust,
                    pods=self._pods,
                )
        except CellwallError as error:
            _log.warning("a machine was not admitted: %s", error.code)
            return {"error": [error.code, error.message, error.hint]}
        return {
            "certificate": pem,
            "ray_token": self._ray_token,
            "ray_address": self._ray_address,
        }

    def _count_try(self) -> None:
        now_s = time.monotonic()
        if len(self._tries) == _MAX_TRIES and now_s - self._tries[0] < _TRIES_WITHIN_S:
            raise Busy(
                "too many machines ask to join",
                hint="Try again in a minute; the token was not used.",
                code="CW-FLEET-BUSY",
            )
        self._tries.append(now_s)


async def enrol(keys: HostKeys, token: JoinToken, *, address: str) -> Enrolled:
    """Make this machine a host. Raises `Denied` where the first host refuses, or where the other
    end is not the first host."""
    # (2): the other end is not verified here, and nothing is sent but the question.
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    told = await _ask(token, unverified, {"ask": "authority"}, address)
    authority = str(told.get("authority", ""))
    if fingerprint(authority) != token.fingerprint:
        raise Denied(
            "the other end is not the fleet of this token: its authority is another one",
            hint="Somebody may be between this machine and the first host. Check the address, and "
            "make a new token.",
            code="CW-FLEET-PIN",
        )
    # (3): from here on, only a certificate of this authority for this address will do.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    asked = {"ask": "join", **join_request(keys, token, address=address)}
    told = await _ask(token, context, asked, address)
    # (5)
    found = Enrolled(
        certificate=str(told.get("certificate", "")),
        authority=authority,
        ray_token=str(told.get("ray_token", "")),
        ray_address=str(told.get("ray_address", "")),
    )
    stated = read_host_certificate(found.certificate, authority)
    own = (keys.host_id, address, keys.signing.public.raw, keys.box_public)
    if (stated.host_id, stated.address, stated.identity.raw, stated.box_key) != own:
        raise BadInput("the certificate is not for the keys of this machine", code="CW-FLEET-JOIN")
    return found


async def _ask(
    token: JoinToken, context: ssl.SSLContext, asked: Mapping[str, Json], address: str
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            reader, writer = await asyncio.open_connection(
                token.host,
                token.port,
                ssl=context,
                server_hostname=token.host,
                local_addr=(address, 0),  # under which the other hosts will reach this machine
                limit=MAX_LINE_BYTES,
            )
            try:
                writer.write(json.dumps(asked).encode() + b"\n")
                told = _parse(await reader.readline())
            finally:
                writer.close()
    except ssl.SSLError:
        raise Denied(
            "the other end has no certificate of this fleet",
            hint="Somebody may be between this machine and the first host. Check the address, and "
            "make a new token.",
            code="CW-FLEET-PIN",
        ) from None
    except (OSError, TimeoutError, ValueError) as error:
        raise CellwallError(
            f"the first host does not answer at {token.host}:{token.port}",
            hint="Check that `cellwall fleet up` runs there, that join_port is open, and that "
            "node_address in [fleet] is an address of this machine.",
            code="CW-FLEET-NODE",
            detail=str(error),
        ) from None
    match told.get("error"):
        case [str() as code, str() as message, str() as hint] if code.startswith("CW-"):
            raise Denied(message[:400], hint=hint[:400], code=code[:40])
        case None:
            return told
        case _:
            raise BadInput("the first host has answered something else", code="CW-FLEET-JOIN")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not line.endswith(b"\n") or not isinstance(found, dict):
        raise BadInput("the other end does not speak the protocol of a fleet", code="CW-FLEET-JOIN")
    return found
