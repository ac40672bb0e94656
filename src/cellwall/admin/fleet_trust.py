"""Trust in a fleet, for the person who runs it and for a machine that starts: tokens, keys, files.

`fleet up` makes the authority at its first start, and certifies its own machine. `fleet token`
makes what another machine needs to join, once. Pods have `fleet_pods`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import anyio

from cellwall.admin.cluster_api import open_cluster_api
from cellwall.admin.configured_fleet import ConfiguredFleet
from cellwall.admin.fleet import fleet_token, open_trust, token_path
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.core.host_trust import StoredCertificate
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.fleet.certificates import (
    FleetAuthority,
    HostCertificate,
    open_authority,
    read_host_certificate,
)
from cellwall.fleet.enrolment import JoinToken, public_keys
from cellwall.fleet.enrolment_service import EnrolmentListener, enrol
from cellwall.fleet.identity import (
    CA_FILE,
    CA_KEY_FILE,
    TLS_FILE,
    TLS_KEY_FILE,
    HostKeys,
    fleet_folder,
    open_host_keys,
    replace_private_file,
)
from cellwall.fleet.pod_tokens import PodReviewer
from cellwall.fleet.ray_node import RayTrust
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.home import local_principal
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.storage.service_id import service_id_of

__all__ = [
    "FleetTrust",
    "JoinTokens",
    "listening_for_machines",
    "stored_certificate",
    "trust_of_first",
    "trust_of_joining",
    "trust_of_running_ray",
]
MAX_LIFETIME_S = 86_400.0
_MAX_FILE_BYTES = 64 * 1024
_MAX_TOKEN_BYTES = 4096
_RENEW_BEFORE = timedelta(days=60)


class JoinTokens(ConfiguredFleet):
    """Makes join tokens, on the first host."""

    def make(self, principal: Principal, *, lifetime_s: float) -> str:
        """A new token; it is not stored and cannot be shown again."""
        refuse_agents("a token with which machines join the fleet")
        require(self._settings, principal, Permission.CONFIG_WRITE)
        if not 1 <= lifetime_s <= MAX_LIFETIME_S:
            raise BadInput("a join token lives for one second to one day")
        authority = open_authority(self._home, creates=False)

        async def add() -> JoinToken:
            async with open_trust(self._home, self._settings) as trust:
                section = self._settings.fleet
                token = JoinToken.make(
                    authority,
                    expires_s=int(await trust.database_time_s() + lifetime_s),
                    host=section.node_address,
                    port=section.join_port,
                )
                await trust.add_join_token(
                    authority.token_hash(token.secret, token.expires_s),
                    expires_s=token.expires_s,
                    made_by=principal.name[:64],
                )
                return token

        change = AdminChange(EventKind.CONFIG, "fleet token", "", {"lifetime_s": lifetime_s})
        with change.recorded_in(self._home, self._settings, principal):
            return anyio.run(add).text()


@dataclass(frozen=True, slots=True, repr=False)
class FleetTrust:
    """What this machine has to prove itself to the others."""

    ray: RayTrust
    authority: FleetAuthority | None = None
    """On the first host alone."""
    ray_address: str = ""
    """Of Ray's first node, as the first host has told it with the certificate."""


async def trust_of_first(
    home: str, settings: Settings, token_file: str | None, *, names: Sequence[str] = ()
) -> FleetTrust:
    """The authority of the fleet, made at the first start, and a certificate for this machine.
    `names`: under which Ray in pods reaches it; then the certificate is made anew."""
    authority = open_authority(home, creates=True)
    keys, address = open_host_keys(home, service_id_of(home)), settings.fleet.node_address
    try:
        found = stored_certificate(home, keys, address)
        pem = found.pem if not names and found.expires > datetime.now(UTC) + _RENEW_BEFORE else ""
    except CellwallError:
        pem = ""
    pem = pem or authority.issue(
        keys.tls.public_key(),
        host_id=keys.host_id,
        address=address,
        identity=keys.signing.public,
        box_key=keys.box_public,
        names=names,
    )
    async with open_trust(home, settings) as trust:
        stored = StoredCertificate(keys.host_id, pem, is_revoked=False)
        kept = public_keys(keys.signing.public, keys.box_public)
        if not await trust.keep_certificate(stored, public_keys=kept):
            raise ConfigError(
                "the database knows this host with other keys, or as removed",
                hint="Restore the folder `fleet` of the state folder from a backup, or remove "
                "`service-id` from the state folder to start as a new host.",
                code="CW-FLEET-NAME",
            )
    replace_private_file(os.path.join(fleet_folder(home), TLS_FILE), pem.encode())
    token = fleet_token(home, token_file, creates=True)
    return FleetTrust(_ray_trust(home, settings, token), authority)


async def trust_of_joining(
    home: str, settings: Settings, join_token: str | None, token_file: str | None
) -> FleetTrust:
    """By a token at the first time, later by the files of then."""
    keys, address = open_host_keys(home, service_id_of(home)), settings.fleet.node_address
    folder, ray_address = fleet_folder(home), ""
    if join_token is not None:
        got = await enrol(keys, JoinToken.parse(join_token), address=address)
        replace_private_file(os.path.join(folder, CA_FILE), got.authority.encode())
        replace_private_file(os.path.join(folder, TLS_FILE), got.certificate.encode())
        replace_private_file(token_path(home), got.ray_token.encode())
        ray_address = got.ray_address
    token = fleet_token(home, token_file, creates=False)
    stored_certificate(home, keys, address)
    return FleetTrust(_ray_trust(home, settings, token), ray_address=ray_address)


def trust_of_running_ray(
    home: str, settings: Settings, token_file: str | None, *, creates: bool
) -> FleetTrust:
    """Ray was started before, and its variables are those of this process. A first host that was
    certified has the authority, and lets others join."""
    is_tls = os.environ.get("RAY_USE_TLS", "").lower() in {"1", "true"}
    if not is_tls and not settings.fleet.dangerously_without_tls:
        raise ConfigError(
            "the running node of Ray is without TLS",
            hint="Start Ray with RAY_USE_TLS=1 and certificates, and this command with the same "
            "variables; or accept the risk with dangerously_without_tls in [fleet].",
            code="CW-FLEET-TLS",
        )
    is_authority = creates and os.path.exists(os.path.join(fleet_folder(home), CA_KEY_FILE))
    return FleetTrust(
        RayTrust(token_file=fleet_token(home, token_file, creates=creates)),
        open_authority(home, creates=False) if is_authority else None,
    )


@asynccontextmanager
async def listening_for_machines(
    home: str, settings: Settings, trust: FleetTrust, *, ray_address: str
) -> AsyncIterator[None]:
    """Machines join meanwhile, where this host has the authority."""
    if trust.authority is None:
        yield
        return
    token = _read_token(trust.ray.token_file)

    def record(host_id: str, address: str) -> AbstractContextManager[object]:
        change = AdminChange(EventKind.CONFIG, "fleet join", host_id, {"address": address})
        return change.recorded_in(home, settings, local_principal("fleet"))

    folder, section = fleet_folder(home), settings.fleet
    async with open_trust(home, settings) as port, _pod_reviewer(settings) as pods:
        listener = EnrolmentListener(
            trust.authority,
            port,
            ray_token=token,
            ray_address=ray_address,
            recording=record,
            pods=pods,
        )
        async with listener.listening(
            section.node_address,
            section.join_port,
            certificate=os.path.join(folder, TLS_FILE),
            key=os.path.join(folder, TLS_KEY_FILE),
        ):
            yield


@asynccontextmanager
async def _pod_reviewer(settings: Settings) -> AsyncIterator[PodReviewer | None]:
    """None where no pods may join."""
    section = settings.kubernetes
    if section.host_account is None:
        yield None
        return
    async with open_cluster_api(settings) as api:
        yield PodReviewer(api, namespace=section.namespace, account=section.host_account)


def _read_token(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read(_MAX_TOKEN_BYTES).strip()


def stored_certificate(home: str, keys: HostKeys, address: str) -> HostCertificate:
    """The certificate of this machine, if it is of these keys, this address and this time."""
    folder = fleet_folder(home)
    texts = []
    for name in (TLS_FILE, CA_FILE):
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                texts.append(file.read(_MAX_FILE_BYTES))
        except (OSError, UnicodeDecodeError):
            raise _not_joined("this machine has not joined the fleet") from None
    found = read_host_certificate(*texts)
    own = (keys.host_id, address, keys.signing.public.raw, keys.box_public)
    if (found.host_id, found.address, found.identity.raw, found.box_key) != own:
        raise _not_joined("the certificate of this machine is for another name, address or key")
    return found


def _ray_trust(home: str, settings: Settings, token_file: str) -> RayTrust:
    if settings.fleet.dangerously_without_tls:
        return RayTrust(token_file=token_file)
    folder = fleet_folder(home)
    return RayTrust(
        token_file=token_file,
        authority=os.path.join(folder, CA_FILE),
        certificate=os.path.join(folder, TLS_FILE),
        key=os.path.join(folder, TLS_KEY_FILE),
    )


def _not_joined(message: str) -> ConfigError:
    return ConfigError(
        message,
        hint="Make a join token with `cellwall fleet token` on the first host, and give it to "
        "`cellwall fleet join` on standard input with --join-token.",
        code="CW-FLEET-TOKEN",
    )
