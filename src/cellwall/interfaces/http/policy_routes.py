"""`/v1/policies`: the rules in effect, and verdicts on calls. Rules are written on the host, or by
an answer to a question: a client that could write them could allow itself everything."""

from __future__ import annotations

import os
from typing import Any

import anyio
from fastapi import APIRouter

from cellwall.core.text import plain
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.policies import (
    CheckRequest,
    DecisionBody,
    Decisions,
    RuleBody,
    Rules,
)
from cellwall.interfaces.http.callers import CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.rendering import without_path
from cellwall.interfaces.http.service import CurrentService, Service
from cellwall.interfaces.http.shipped_policy import default_policy
from cellwall.runtime.policies import (
    Policy,
    PolicyPlace,
    approved_rules_place,
    effective_policy,
    read_call,
)
from cellwall.runtime.signed_grants import signed_grants

routes = APIRouter(
    route_class=CheckedRoute, prefix="/policies", tags=["policies"], responses=ERRORS
)
_CWD = "/workspace"
"""Paths of calls are those in a sandbox."""


@routes.get("")
async def read_rules(service: CurrentService, caller: CurrentCaller) -> Rules:
    """The rules that apply to sessions of the service, for callers with `policy:write`."""
    require(service, caller, Permission.POLICY_WRITE)

    def read() -> Rules:
        return Rules(
            rules=[
                RuleBody(
                    verdict=rule.verdict.word,
                    rule=_shown(service, rule.text),
                    layer=rule.layer.word,
                    source=os.path.basename(str(rule.source)),
                    reason=_shown(service, rule.reason),
                )
                for rule in service_policy(service).rules
            ]
        )

    return await anyio.to_thread.run_sync(read, limiter=service.readers)


@routes.post("/check")
async def check_calls(
    service: CurrentService, caller: CurrentCaller, body: CheckRequest
) -> Decisions:
    """The verdict of the rules on each call. Nothing runs; roles, budgets and the guard may refuse
    what the rules allow."""
    require(service, caller, Permission.SANDBOX_EXECUTE)

    def judge() -> Decisions:
        policy, decisions = service_policy(service), []
        for each in body.calls:
            given: Any = plain({"tool": each.tool, "input": each.input})
            decision = without_path(policy.check(read_call(given, cwd=_CWD)).to_json())
            shown = {name: _shown(service, str(value)) for name, value in decision.items()}
            decisions.append(DecisionBody.model_validate(shown))
        return Decisions(decisions=decisions)

    return await anyio.to_thread.run_sync(judge, limiter=service.readers)


def service_policy(service: Service) -> Policy:
    """The rules that apply to sessions of the service."""
    named = service.app.settings.policy.files or tuple(filter(None, [default_policy(service.app)]))
    return effective_policy(
        named=named,
        cwd="/",
        environ=os.environ,
        grants=signed_grants(service.app.store.home, service.app.settings),
        protects_build_files=service.app.settings.workspace.protects_build_files,
    )


def rule_place(service: Service) -> PolicyPlace | None:
    """The file that gets rules that a person approves, and its layer. None where the shipped policy
    counts: a first file of the user would replace it as a whole, and deny nearly everything."""
    if default_policy(service.app) is not None:
        return None
    return approved_rules_place(service.app.settings.policy.files, os.environ)


def _shown(service: Service, text: str) -> str:
    return service.paths.hide_in(str(plain(text)))
