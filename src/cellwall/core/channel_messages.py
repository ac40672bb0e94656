"""Messages of a channel as actions: one to an agent, and the agent's answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Channel: TypeAlias = Literal["plain", "markdown", "html", "email", "telegram", "discord", "slack"]
CHANNEL_NAMES: tuple[Channel, ...] = get_args(Channel)
"""The formats in which a channel delivers messages; `guard.channel_formats` has one of each."""


@dataclass(frozen=True, slots=True)
class ReceiveMessage:
    """Hand a message of a paired user to an agent. The outcome's `text` is the message, cleaned."""

    channel: Channel
    content: str = field(repr=False)
    """In the raw form of the channel: the JSON of a chat service, the MIME source of a mail."""
    pairing: str
    """The id of the pairing; the sender's address on the channel is in no log."""


@dataclass(frozen=True, slots=True)
class SendReply:
    """Prepare the answer of an agent for a channel. The outcome's `text` is what may be sent."""

    channel: Channel
    content: str = field(repr=False)
    pairing: str
