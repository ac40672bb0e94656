"""Hosts: the verdict of the rules, and what allows one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.base import RequestBody, examples

HostName = Annotated[str, Field(min_length=1, max_length=253)]


class MoreDomains(RequestBody):
    """Domain rules for a live sandbox, beside those that it has."""

    add: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(
        min_length=1, max_length=20, description="as in `allow_domains` of a new session"
    )
    model_config = examples({"add": ["api.example.com:443"]})


class AllowedDomains(BaseModel):
    """All domain rules of a sandbox, without those of the configuration."""

    domains: list[str]


class HostRuleBody(BaseModel):
    """A rule that would let sandboxes reach a host."""

    rule: str
    also_allows: str
    file: str = Field(description="the name of the policy file that would get the rule")
    layer: str = Field(description="the layer of the file")
    newly_allowed: int | None = Field(
        description="calls of the last week that the rule would have allowed; null without "
        "`audit:read`"
    )
    examples: list[str] = Field(description="some of these calls")
    judged: int | None = Field(description="calls of the last week that were judged again")
    is_partial: bool = Field(description="only the newest calls were judged")


class HostAccessBody(BaseModel):
    """The verdict of the rules on a host. A sandbox reaches the host if it also was given it."""

    host: str
    verdict: str
    rule: str
    reason: str
    layer: str = Field(description="of the rule that decided; empty where none did")
    proposal: HostRuleBody | None = Field(
        description="for callers with `policy:write`, where a rule would change the verdict"
    )
    obstacle: str = Field(description="why no rule would change the verdict")
    shown_sha256: str = Field(description="to be sent back with the decision")


class HostRuleRequest(RequestBody):
    """The proposed rule is written as it was shown."""

    shown_sha256: str = Field(max_length=64, description="of the answer that was shown")
    model_config = examples({"shown_sha256": "0" * 64})


class HostRuleWritten(BaseModel):
    """The rule is in the file."""

    rule: str
    file: str
    layer: str
    is_new: bool = Field(description="false: the file had it already")
