"""`/v1/messages` and `/v1/pairings`: what chat and mail channels received, and who sent it."""

from __future__ import annotations

from fastapi import APIRouter

from cellwall.admin.messages import InboundMessage
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.messages import (
    MessageRequest,
    PairingBody,
    PairingCodeBody,
    PairingList,
    ReceptionBody,
    ReplyBody,
)
from cellwall.interfaces.http.callers import CurrentCaller
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["messages"], responses=ERRORS)


@routes.post("/messages")
async def receive_message(
    service: CurrentService, caller: CurrentCaller, body: MessageRequest
) -> ReceptionBody:
    """For the bridge to a channel: hand a received message over.

    The same message is handled once. A sender who is not paired gets `reply` and nothing else.
    """
    reception = await service.inbox.receive(_message(body), by=caller.principal)
    return ReceptionBody.model_validate(reception.to_json())


@routes.post("/messages/replies")
async def prepare_reply(
    service: CurrentService, caller: CurrentCaller, body: MessageRequest
) -> ReplyBody:
    """For the bridge to a channel: the agent's answer without secrets, beacons and registered
    texts, ready to be sent. `content` is the answer as plain text."""
    outcome = await service.inbox.reply(_message(body), by=caller.principal)
    raise_for_refusal(outcome)
    findings = [dict(each.to_json()) for each in outcome.findings]
    return ReplyBody(text=outcome.text or "", findings=findings, audit_id=outcome.audit_id)


@routes.post("/pairings/codes", status_code=201)
async def new_pairing_code(service: CurrentService, caller: CurrentCaller) -> PairingCodeBody:
    """A one-time code of the caller, who must have signed in: a service token cannot pair."""
    pairings = service.accounts.pairings
    code = await pairings.new_code(caller.identity.name, by=caller.principal)
    return PairingCodeBody(code=code)


@routes.get("/pairings")
async def list_pairings(service: CurrentService, caller: CurrentCaller) -> PairingList:
    """The caller's paired accounts."""
    found = await service.accounts.pairings.list_of(caller.identity.name, by=caller.principal)
    return PairingList(
        pairings=[
            PairingBody(id=each.id, channel=each.channel, created=each.created_s) for each in found
        ]
    )


@routes.delete("/pairings/{pairing_id}", status_code=204)
async def remove_pairing(service: CurrentService, caller: CurrentCaller, pairing_id: str) -> None:
    """End a pairing of the caller."""
    pairings = service.accounts.pairings
    await pairings.remove(caller.identity.name, pairing_id, by=caller.principal)


def _message(body: MessageRequest) -> InboundMessage:
    return InboundMessage(
        channel=body.channel,
        sender=body.sender,
        message=body.message,
        content=body.content,
        session=body.session,
    )
