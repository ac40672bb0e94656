"""The table of channel formats: `read` extracts all text, `clean` makes text safe to send.

Neither function raises on any text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cellwall.core.channel_messages import Channel
from cellwall.core.errors import BadInput
from cellwall.guard.channels import html, markdown, markdown_clean
from cellwall.guard.channels.markdown_clean import visible
from cellwall.guard.channels.pieces import Extracted, Gathering, Piece
from cellwall.guard.chat import discord, email, slack, telegram

__all__ = ["CHANNELS", "Channel", "Extracted", "Format", "Piece", "clean", "clean_header", "read"]


class Format(NamedTuple):
    """Parser of a channel's raw form, and sanitiser for text that is sent to the channel."""

    read: Callable[[str], Extracted]
    clean: Callable[[str], str]


def _read_plain(text: str) -> Extracted:
    """One piece; tricks with characters are the normaliser's concern."""
    gathering = Gathering()
    gathering.add(text, "text", 0, len(text), is_hidden=False)
    return gathering.result()


CHANNELS: Mapping[str, Format] = MappingProxyType(
    {
        "plain": Format(_read_plain, visible),
        "markdown": Format(markdown.read, markdown_clean.clean),
        "html": Format(html.read, html.clean),
        "email": Format(email.read, email.clean),
        "telegram": Format(telegram.read, telegram.clean),
        "discord": Format(discord.read, discord.clean),
        "slack": Format(slack.read, slack.clean),
    }
)
clean_header = email.clean_header


def read(channel: str, text: str) -> Extracted:
    """All text of a message in raw form, with the parts that people do not see marked hidden."""
    return _format(channel).read(text)


def clean(channel: str, text: str) -> str:
    """The text without beacons, mentions of everybody and hidden content."""
    return _format(channel).clean(text)


def _format(channel: str) -> Format:
    found = CHANNELS.get(channel)
    if found is None:
        raise BadInput(
            f"there is no channel {channel[:40]!r}", hint=f"Use one of: {', '.join(CHANNELS)}."
        )
    return found
