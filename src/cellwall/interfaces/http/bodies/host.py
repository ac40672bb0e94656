"""The checks of the host, and what its configuration allows."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.base import Seconds


class HostCheckBody(BaseModel):
    """One check."""

    name: str
    status: Literal["ok", "missing", "weak", "info"]
    found: str
    why: str
    hint: str
    is_required: bool


class HostReportBody(BaseModel):
    """All checks of one examination."""

    at: Seconds | None = Field(description="when they ran; null: not since the start")
    is_usable: bool | None = Field(description="no required check is missing")
    checks: list[HostCheckBody]


class AbilityBody(BaseModel):
    """One thing that code can do, or explicitly cannot."""

    id: str = Field(description="the verb and a name, such as read.devices")
    verb: Literal["read", "write", "execute", "reach", "spend", "keep"]
    what: str
    bound: str
    setting: str = Field(description="the setting that decides; empty where none does")
    is_possible: bool = Field(description="false: code cannot do this")
    is_weakened: bool = Field(description="a dangerously_ setting allows it")
    members: list[str] = Field(description="what the bound consists of: paths, domains, rules")


class BlastRadiusBody(BaseModel):
    """All abilities under the effective configuration."""

    profile: str
    abilities: list[AbilityBody]
    weakened: list[str]
