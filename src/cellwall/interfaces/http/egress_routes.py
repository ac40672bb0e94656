"""`/v1/egress/hosts` and `/v1/sessions/{id}/domains`: what lets a sandbox reach a host (NET-2).

A person with `policy:write` writes the one rule that is proposed for a host, never a rule of their
own text. A domain of a live sandbox is an action of the caller: judged and recorded.
"""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path

from cellwall.admin.host_access import HostAccess, allow_host, host_access, preview_host_rule
from cellwall.core.errors import BadInput
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.base import ErrorResponse
from cellwall.interfaces.http.bodies.egress import (
    AllowedDomains,
    HostAccessBody,
    HostRuleBody,
    HostRuleRequest,
    HostRuleWritten,
    MoreDomains,
)
from cellwall.interfaces.http.callers import Caller, CurrentCaller, may, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.policy_routes import rule_place, service_policy
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.runtime.policies import Policy

_CHANGED: dict[int | str, dict[str, Any]] = {
    412: {"model": ErrorResponse, "description": "The rules are not those that were shown."}
}
routes = APIRouter(route_class=CheckedRoute, tags=["egress"], responses={**ERRORS, **_CHANGED})
_HOST = "/egress/hosts/{host}"
HostName = Annotated[str, Path(min_length=1, max_length=253)]


@routes.post("/sessions/{session_id}/domains")
async def add_domains(
    service: CurrentService, caller: CurrentCaller, session_id: str, body: MoreDomains
) -> AllowedDomains:
    """Let a live sandbox reach further hosts, from its next connection on. The sandbox needs
    egress from its start."""
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    raise_for_refusal(await sandbox.allow(caller.principal, body.add))
    return AllowedDomains(domains=list(sandbox.host.domains))


@routes.get(_HOST)
async def get_host_access(
    service: CurrentService, caller: CurrentCaller, host: HostName
) -> HostAccessBody:
    """What the rules say about a host, and the one rule that would change it."""
    require(service, caller, Permission.SANDBOX_EXECUTE)

    def read() -> HostAccessBody:
        policy = service_policy(service)
        return _describe(service, caller, _access(service, policy, host), policy)

    return await anyio.to_thread.run_sync(read, limiter=service.readers)


@routes.post(_HOST)
async def write_host_rule(
    service: CurrentService, caller: CurrentCaller, host: HostName, body: HostRuleRequest
) -> HostRuleWritten:
    """Write the proposed rule into the policy of the service."""
    require(service, caller, Permission.POLICY_WRITE)
    require_person(caller, "writes no rule for a host")

    def write() -> HostRuleWritten:
        access = _access(service, service_policy(service), host)
        is_new = allow_host(
            access, shown_sha256=body.shown_sha256, app=service.app, who=caller.principal
        )
        rule = access.proposal
        assert rule is not None  # noqa: S101  # else `allow_host` raises
        return HostRuleWritten(
            rule=rule.text, file=rule.file, layer=rule.place.layer.word, is_new=is_new
        )

    return await anyio.to_thread.run_sync(write, limiter=service.readers)


def _access(service: Service, policy: Policy, host: str) -> HostAccess:
    try:
        return host_access(host, policy=policy, place=rule_place(service))
    except ValueError:  # a lone surrogate
        raise BadInput("this is not a host", hint="Name it as in api.example.com.") from None


def _describe(
    service: Service, caller: Caller, access: HostAccess, policy: Policy
) -> HostAccessBody:
    hide, rule, proposal = service.paths.hide_in, access.proposal, None
    if rule is not None and may(service, caller, Permission.POLICY_WRITE):
        seen = None
        if may(service, caller, Permission.AUDIT_READ):
            seen = preview_host_rule(rule, app=service.app, policy=policy)
        proposal = HostRuleBody(
            rule=rule.text,
            also_allows=rule.also_allows,
            file=rule.file,
            layer=rule.place.layer.word,
            newly_allowed=None if seen is None else seen.newly,
            examples=[] if seen is None else [hide(each) for each in seen.examples],
            judged=None if seen is None else seen.judged,
            is_partial=seen is not None and seen.is_partial,
        )
    return HostAccessBody(
        host=access.host,
        verdict=access.decision.verdict.word,
        rule=hide(access.decision.rule),
        reason=hide(access.decision.reason),
        layer=access.layer,
        proposal=proposal,
        obstacle=hide(access.obstacle),
        shown_sha256=access.shown_sha256,
    )
