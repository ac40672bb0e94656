"""Rules, and verdicts on tool calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cellwall.interfaces.http.bodies.base import RequestBody, examples


class ToolCallBody(RequestBody):
    """A call of a tool, as an agent's hook reports it."""

    tool: Annotated[str, Field(min_length=1, max_length=200)]
    input: Annotated[dict[str, Any], Field(default_factory=dict)]


class CheckRequest(RequestBody):
    """Calls to judge; none of them runs."""

    calls: Annotated[list[ToolCallBody], Field(min_length=1, max_length=100)]
    model_config = ConfigDict(
        **examples({"calls": [{"tool": "Bash", "input": {"command": "git push"}}]}),
        extra="forbid",
    )


class DecisionBody(BaseModel):
    """What the policy decided about one call or action, and why."""

    verdict: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    source: str = Field(description="name and line of the policy file, or built-in")


class Decisions(BaseModel):
    """One decision for each call, in their order."""

    decisions: list[DecisionBody]


class RuleBody(BaseModel):
    """One rule in effect."""

    verdict: str
    rule: str
    layer: str
    source: str
    reason: str


class Rules(BaseModel):
    """The rules in effect for sessions of the service."""

    rules: list[RuleBody]
