"""Messages of a chat or mail channel: who sent them, and which were handled.

A bridge is the program that talks to the channel's own service. It relays what the channel
received; the sender counts as a user of Cellwall only after the two were paired by a one-time code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cellwall.core.account_ports import AccountsPort, SessionsPort, UsersPort
from cellwall.core.accounts import User
from cellwall.core.hosts import HostsPort
from cellwall.core.services import ServicesPort


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingCode:
    """A one-time code. Only its hash is kept."""

    code_hash: bytes
    user_id: str
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A sender on a channel who is a user of Cellwall. The address itself is kept as a hash."""

    id: str
    user_id: str
    channel: str
    sender_hash: bytes
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEntry:
    """A message that is about to be handled. `message_hash` covers channel, sender and id."""

    message_hash: bytes
    pairing_id: str
    received_s: float
    forget_after_s: float


class Admission(StrEnum):
    """Whether a message is to be handled."""

    NEW = "new"
    REPEATED = "repeated"
    """It was handled before, or is being handled now."""
    TOO_MANY = "too-many"
    UNPAIRED = "unpaired"
    """The pairing was removed meanwhile."""


class MessagesPort(Protocol):
    """Pairings, and the messages that were handled. Each method is one transaction."""

    async def add_pairing_code(self, code: PairingCode) -> None:
        """Replaces the unused code of the same user."""

    async def use_pairing_code(self, code_hash: bytes, pairing: Pairing, *, now_s: float) -> str:
        """Bind the sender of `pairing` to the user of the code; returns the user's id.

        Empty if the code is unknown, used or expired, if its user is disabled, or if the sender is
        paired already: of two callers with one code, one gets the id. `pairing.user_id` is ignored.
        """

    async def find_pairing(self, channel: str, sender_hash: bytes) -> tuple[Pairing, User] | None:
        """None also if the user is disabled."""

    async def list_pairings(self, user_id: str) -> tuple[Pairing, ...]:
        """The oldest first."""

    async def remove_pairing(self, pairing_id: str, *, user_id: str) -> bool:
        """False if it does not exist or belongs to another user."""

    async def admit_message(
        self, message: MessageEntry, *, per_minute: int, abandoned_s: float
    ) -> Admission:
        """Reserve the message for this caller: of two callers with one message, one gets NEW.

        A reservation that is `abandoned_s` old and was not answered may be taken over: the process
        that held it has ended.
        """

    async def finish_message(self, message_hash: bytes, *, now_s: float) -> None:
        """The message was answered; it is never handled again."""

    async def drop_message(self, message_hash: bytes) -> None:
        """The message could not be handled; the bridge may send it again."""


class ServiceStore(AccountsPort, MessagesPort, Protocol):
    """All that the accounts of a service need of a database."""


class SessionStore(SessionsPort, ServicesPort, HostsPort, MessagesPort, UsersPort, Protocol):
    """All that the sessions and messages of a service need of a database."""
