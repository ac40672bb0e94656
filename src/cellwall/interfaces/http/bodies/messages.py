"""Messages of chat and mail channels, pairings, and connected accounts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from cellwall.core.channel_messages import Channel
from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples

_MAX_CONTENT = 1 << 20
_MAX_NAME = 256


class MessageRequest(RequestBody):
    """What a channel received, as its bridge got it."""

    channel: Channel
    sender: str = Field(min_length=1, max_length=_MAX_NAME, description="as the channel knows it")
    message: str = Field(min_length=1, max_length=_MAX_NAME, description="the channel's own id")
    content: str = Field(max_length=_MAX_CONTENT, description="in the raw form of the channel")
    session: str | None = Field(
        default=None,
        max_length=64,
        description="the sender's session in which an agent works with it; the session has read "
        "the message from then on",
    )
    model_config = examples(
        {"channel": "plain", "sender": "4711", "message": "17", "content": "What is due today?"}
    )


class ReceptionBody(BaseModel):
    """What came of a message."""

    status: Literal["accepted", "denied", "failed", "repeated", "busy", "paired", "unpaired"]
    user: str = Field(description="who sent it; empty for a sender who is not paired")
    text: str = Field(description="the message for the agent, if it was accepted")
    reply: str = Field(description="for the sender, from Cellwall itself; may be empty")
    findings: list[dict[str, Any]]
    error: dict[str, Any] | None
    audit_id: str


class ReplyBody(BaseModel):
    """The answer of an agent as it may be sent."""

    text: str
    findings: list[dict[str, Any]]
    audit_id: str


class PairingCodeBody(BaseModel):
    """A one-time code: the user sends it on the channel."""

    code: str = Field(examples=["7H3KD-Q0XWM"])


class PairingBody(BaseModel):
    """A paired account of the caller."""

    id: str
    channel: str
    created: Seconds


class PairingList(BaseModel):
    """The caller's paired accounts, the oldest first."""

    pairings: list[PairingBody]


class ConnectionRequest(RequestBody):
    """A calendar of the caller at another service."""

    url: str = Field(max_length=2048, description="the calendar collection, over https")
    username: str = Field(min_length=1, max_length=128)
    secret: str = Field(max_length=64, description="the caller's secret with the password")
    kind: Literal["caldav"] = "caldav"
    model_config = examples(
        {"url": "https://cal.example.com/ann/office/", "username": "ann", "secret": "CALENDAR"}
    )


class ConnectionBody(BaseModel):
    """A connected account of the caller."""

    id: str
    name: str
    kind: str
    url: str
    username: str
    secret: str
    created: Seconds


class ConnectionList(BaseModel):
    """The caller's connected accounts, by name."""

    connections: list[ConnectionBody]


class EventRequest(RequestBody):
    """An event to create; times in ISO 8601 with their zone."""

    summary: str = Field(min_length=1, max_length=8192)
    start: str = Field(max_length=40)
    end: str = Field(max_length=40)
    location: str = Field("", max_length=8192)
    description: str = Field("", max_length=8192)
    model_config = examples(
        {"summary": "Review", "start": "2026-01-09T10:00:00Z", "end": "2026-01-09T11:00:00Z"}
    )


class CreatedEvent(BaseModel):
    """The UID of a new event."""

    uid: str


class EventList(BaseModel):
    """Events by their start. Their texts are other people's."""

    events: list[dict[str, str]]
