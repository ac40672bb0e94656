"""All repositories of one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellwall.storage.attempts import Attempts
from cellwall.storage.engine import Database, StorageSettings
from cellwall.storage.flows import Flows
from cellwall.storage.identities import Identities
from cellwall.storage.keys import Keys
from cellwall.storage.messages import Messages
from cellwall.storage.schema import require_current
from cellwall.storage.services import Services
from cellwall.storage.sessions import Sessions
from cellwall.storage.tokens import Tokens
from cellwall.storage.usage import Usage
from cellwall.storage.users import Users


class Store(Users, Tokens, Keys, Flows, Identities, Attempts, Sessions, Services, Usage, Messages):
    """Implements `AccountsPort`, `SessionsPort`, `ServicesPort`, `UsagePort` and `MessagesPort`."""


@asynccontextmanager
async def open_store(settings: StorageSettings) -> AsyncIterator[Store]:
    """The repositories of a database that has the newest schema."""
    database = Database(settings)
    try:
        await require_current(database)
        yield Store(database)
    finally:
        await database.close()
