"""Messages that a bridge relays from a chat or mail channel, and the answers that it may send.

   (1) the bridge may relay          (4) the message is new, and within the rate of its sender
   (2) sizes and names               (5) an action of that user: judged, guarded, recorded
   (3) the sender is a known user    (6) handled once and for all, or free to be sent again

The bridge is trusted to report the sender as the channel has authenticated it, and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import anyio

from cellwall.accounts.pairing import Pairings, Sender
from cellwall.accounts.signing_keys import Clock
from cellwall.config.models import Settings
from cellwall.core.accounts import User
from cellwall.core.channel_messages import CHANNEL_NAMES, Channel, ReceiveMessage, SendReply
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.messages import Admission, MessageEntry, MessagesPort, Pairing
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, Json, Permission, Principal
from cellwall.runtime.bounds import MAX_MESSAGE_BYTES
from cellwall.runtime.judging import roles_of
from cellwall.runtime.pipeline import Runtime

PAIRING_HINT = (
    "This account is not connected to Cellwall. Get a pairing code from Cellwall, and send it here."
)
_PAIRED = "This account is connected to Cellwall now."
_BUSY = "There were too many messages. Wait a minute, then send it again."
_REFUSED = "Cellwall refused this message."
_MAX_NAME = 256
_MAX_GREETING = 256 * 1024
"""A message with a code; of a mail, with all its headers and parts."""
_ABANDONED_S = 120.0
"""A process that admitted a message and did not answer it for so long has ended."""
_DAY_S = 86_400.0

ReceptionStatus = Literal["accepted", "denied", "failed", "repeated", "busy", "paired", "unpaired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """What a channel received."""

    channel: str
    sender: str
    """As the channel authenticates it: the id of a chat account, the address of a verified mail."""
    message: str
    """The channel's id of the message, unique for its sender."""
    content: str
    session: str | None = None
    """The session of the sender in which an agent works with the message, or answers it: it has
    read the message from then on (POL-9)."""


Owns = Callable[[str, str], bool]
"""Whether the user with this id owns the live session with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """What came of a message."""

    status: ReceptionStatus
    user: str = ""
    text: str = ""
    """For the agent, if the status is `accepted`."""
    reply: str = ""
    """For the sender, from Cellwall itself."""
    outcome: Outcome | None = None

    def to_json(self) -> dict[str, Json]:
        outcome = self.outcome
        return {
            "status": self.status,
            "user": self.user,
            "text": self.text,
            "reply": self.reply,
            "findings": [] if outcome is None else [each.to_json() for each in outcome.findings],
            "error": None if outcome is None or outcome.error is None else outcome.error.to_json(),
            "audit_id": "" if outcome is None else outcome.audit_id,
        }


class Inbox:
    """The inbound messages of one service."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessagesPort,
        pairings: Pairings,
        settings: Settings,
        *,
        policy: str | None = None,
        owns: Owns = lambda _user, _session: False,
        clock: Clock = time.time,
    ) -> None:
        """`policy` is the file to go by where there are no rules."""
        self._owns = owns
        self._policy = () if policy is None else (policy,)
        self._runtime, self._store, self._pairings = runtime, store, pairings
        self._roles, self._clock = roles_of(settings), clock
        self._per_minute = settings.messages.per_minute
        self._remember_s = settings.messages.remember_days * _DAY_S

    async def receive(self, message: InboundMessage, *, by: Principal) -> Reception:
        """Handle one message, once."""
        # (1)
        self._roles.require(by, Permission.CHANNELS_RELAY)
        # (2)
        channel = _check(message)
        # (3)
        sender = self._pairings.sender(channel, message.sender)
        found = await self._pairings.find(sender)
        if found is None:
            return await self._greet(message, sender)
        pairing, user = found
        self._check_session(user, message.session)
        # (4)
        now_s = self._clock()
        own = self._pairings.digest("message", channel, message.sender, message.message)
        entry = MessageEntry(
            message_hash=own,
            pairing_id=pairing.id,
            received_s=now_s,
            forget_after_s=now_s + self._remember_s,
        )
        admission = await self._store.admit_message(
            entry, per_minute=self._per_minute, abandoned_s=_ABANDONED_S
        )
        match admission:
            case Admission.REPEATED:
                return Reception(status="repeated", user=user.name)
            case Admission.TOO_MANY:
                return Reception(status="busy", user=user.name, reply=_BUSY)
            case Admission.UNPAIRED:
                return Reception(status="unpaired", reply=PAIRING_HINT)
            case Admission.NEW:
                return await self._handle(message, channel, pairing, user, own)

    async def reply(self, message: InboundMessage, *, by: Principal) -> Outcome:
        """Prepare an agent's answer to a paired sender; `content` is the answer as plain text."""
        self._roles.require(by, Permission.CHANNELS_RELAY)
        channel = _check(message)
        found = await self._pairings.find(self._pairings.sender(channel, message.sender))
        if found is None:
            raise BadInput(PAIRING_HINT, code="CW-UNPAIRED")
        pairing, user = found
        self._check_session(user, message.session)
        operation = SendReply(channel, message.content, pairing.id)
        return await self._perform(user, operation, message)

    async def _handle(
        self, message: InboundMessage, channel: Channel, pairing: Pairing, user: User, own: bytes
    ) -> Reception:
        operation = ReceiveMessage(channel, message.content, pairing.id)
        is_final = False
        try:
            # (5)
            outcome = await self._perform(user, operation, message)
            is_final = outcome.status is not Status.ERROR
        finally:
            # (6) A denial is an answer. After a failure the bridge may send the message again.
            with anyio.CancelScope(shield=True):
                if is_final:
                    await self._store.finish_message(own, now_s=self._clock())
                else:
                    await self._store.drop_message(own)
        if outcome.status is Status.OK:
            text = outcome.text or ""
            return Reception(status="accepted", user=user.name, text=text, outcome=outcome)
        status: ReceptionStatus = "denied" if outcome.status is Status.DENIED else "failed"
        return Reception(status=status, user=user.name, reply=_REFUSED, outcome=outcome)

    async def _perform(
        self, user: User, operation: ReceiveMessage | SendReply, message: InboundMessage
    ) -> Outcome:
        return await self._runtime.perform(
            Action(
                principal=_principal_of(user),
                operation=operation,
                policy=self._policy,
                session_id=message.session,
                context=f"pairing {operation.pairing}",
            )
        )

    def _check_session(self, user: User, session_id: str | None) -> None:
        """Another user's session is as absent as an unknown one."""
        if session_id is not None and not self._owns(user.id, session_id):
            raise NotFound(
                "the sender has no such session",
                hint="Name a live session of the paired user, or none.",
            )

    async def _greet(self, message: InboundMessage, sender: Sender) -> Reception:
        if len(message.content) > _MAX_GREETING:  # strangers get little time
            return Reception(status="unpaired", reply=PAIRING_HINT)
        texts = await anyio.to_thread.run_sync(
            lambda: list(_visible_texts(message.channel, message.content))
        )
        if await self._pairings.pair(sender, texts):
            return Reception(status="paired", reply=_PAIRED)
        return Reception(status="unpaired", reply=PAIRING_HINT)


def _visible_texts(channel: str, content: str) -> Iterator[str]:
    from cellwall.guard.channel_formats import read  # noqa: PLC0415  # the parsers load slowly

    return (piece.text for piece in read(channel, content).pieces if not piece.is_hidden)


def _check(message: InboundMessage) -> Channel:
    for name in (message.sender, message.message):
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise BadInput(
                "the sender and the id of a message have 1 to 256 printable characters",
                code="CW-BAD-MESSAGE",
            )
    if len(message.content.encode("utf-8", "surrogatepass")) > MAX_MESSAGE_BYTES:
        raise BadInput(
            f"the message is larger than the {MAX_MESSAGE_BYTES} bytes allowed",
            hint="Send it without attachments.",
            code="CW-MESSAGE-TOO-LARGE",
        )
    for channel in CHANNEL_NAMES:
        if channel == message.channel:
            return channel
    raise BadInput(
        "there is no such channel",
        hint=f"Use one of: {', '.join(CHANNEL_NAMES)}.",
        code="CW-BAD-CHANNEL",
    )


def _principal_of(user: User) -> Principal:
    """The user, with no other permission than this one, whatever the role is."""
    return Principal(user.name, "http", user.role, frozenset({Permission.CHAT_SEND}))
