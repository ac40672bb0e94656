"""All repositories of one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellwall.storage.attempts import AttemptRepository
from cellwall.storage.engine import Database, StorageSettings
from cellwall.storage.flows import FlowRepository
from cellwall.storage.host_trust import HostTrustRepository
from cellwall.storage.hosts import HostRepository
from cellwall.storage.identities import IdentityRepository
from cellwall.storage.keys import KeyRepository
from cellwall.storage.messages import MessageRepository
from cellwall.storage.schema import require_current
from cellwall.storage.services import ServiceRepository
from cellwall.storage.sessions import SessionRepository
from cellwall.storage.tokens import TokenRepository
from cellwall.storage.usage import UsageRepository
from cellwall.storage.users import UserRepository


class Store(
    UserRepository,
    TokenRepository,
    KeyRepository,
    FlowRepository,
    IdentityRepository,
    AttemptRepository,
    SessionRepository,
    ServiceRepository,
    HostRepository,
    HostTrustRepository,
    UsageRepository,
    MessageRepository,
):
    """Implements `AccountsPort`, `SessionsPort`, `ServicesPort`, `HostsPort`, `HostTrustPort`,
    `WitnessPort`, `ReleasesPort`, `UsagePort` and `MessagesPort`."""


@asynccontextmanager
async def open_store(settings: StorageSettings) -> AsyncIterator[Store]:
    """The repositories of a database that has the newest schema."""
    database = Database(settings)
    try:
        await require_current(database)
        yield Store(database)
    finally:
        await database.close()
