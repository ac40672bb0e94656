"""The hosts of a fleet, as the dashboard and operators see them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class FleetHostBody(BaseModel):
    """One host, as of its last renewal."""

    id: str = Field(examples=["svc_06fn8q3v7c1x2m4k5j6h7g8f9d"])
    state: Literal["serves", "drains", "lost"]
    is_this: bool = Field(description="this host has answered the request")
    version: str = Field(description="of Cellwall; empty where the host has told none")
    policy_version: int | None = Field(
        description="of the policy that was published for all hosts; null: the host has none"
    )
    problem: str = Field(description="the code of why the host refuses requests; empty: it serves")
    address: str
    labels: dict[str, str]
    memory_free_bytes: int
    memory_bytes: int
    sessions: int
    busy: int = Field(description="sessions with a run under way")
    templates: list[str] = Field(description="those that are warm")
    unseen_s: float = Field(description="seconds since the host renewed its lease")


class FleetBody(BaseModel):
    """All hosts by id; a lost one is listed for a day."""

    is_fleet: bool = Field(description="false: one service without a fleet, which is the one host")
    hosts: list[FleetHostBody]
