"""MCP servers behind the gateway, and decisions about their definitions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.base import RequestBody, examples


class ToolServerBody(BaseModel):
    """A server in short."""

    name: str
    place: str = Field(description="its address, or its command")
    seen_at: str = Field(description="when its definitions were last seen; empty: never")
    accepted: int = Field(description="accepted tools")
    waiting: int = Field(description="definitions that wait for a decision")
    trouble: str = Field(description="why the entry cannot be used; empty otherwise")


class ToolServerList(BaseModel):
    """All servers, by name."""

    servers: list[ToolServerBody]


class DefinitionFinding(BaseModel):
    """What the guard has found in a definition."""

    message: str
    where: str
    rule: str


class DefinitionBody(BaseModel):
    """A tool, or the server itself (`tool` is empty)."""

    tool: str
    state: Literal["accepted", "new", "changed", "rejected", "refused", "gone"]
    reason: str
    diff: str = Field(description="against what was accepted; whole, and escaped as JSON")
    findings: list[DefinitionFinding]
    shadows: str = Field(description="the owner of another tool of this name")


class ToolServerReview(BaseModel):
    """What a server says now, compared with what was accepted."""

    name: str
    place: str
    seen_at: str
    shown_sha256: str = Field(description="to be sent back with the decision")
    waits: bool
    definitions: list[DefinitionBody]


class DefinitionDecision(RequestBody):
    """A decision about exactly the definitions that were shown. Definitions with findings are
    accepted on the machine of the service alone."""

    decision: Literal["accept", "reject"]
    shown_sha256: str = Field(max_length=64)
    tools: list[Annotated[str, Field(max_length=200)]] = Field(
        [], max_length=500, description="empty: all that wait"
    )
    model_config = examples({"decision": "accept", "shown_sha256": "0" * 64, "tools": []})


class DecidedDefinitions(BaseModel):
    """The tools that the decision is about."""

    tools: list[str]
