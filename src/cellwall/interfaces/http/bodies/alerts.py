"""Alerts and silences."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples


class AlertBody(BaseModel):
    """One alert."""

    id: str = Field(description="the same from pending to resolved")
    rule: str
    group: str = Field(description="the value that the rule counts apart; empty for most rules")
    severity: str = Field(description="low, medium, high or critical")
    state: str = Field(description="pending, firing or resolved")
    summary: str
    reason: str
    records: list[str] = Field(description="the newest records that caused it: GET /v1/audit")
    since_s: Seconds
    ended_s: Seconds | None
    silenced_by: str | None = None


class SilenceBody(BaseModel):
    """Messages that are held back."""

    id: str
    rule: str
    group: str
    until_s: Seconds
    by: str
    reason: str
    made_s: Seconds


class ReceiverBody(BaseModel):
    """How delivery to one receiver stands; its address is not shown."""

    name: str
    kind: str
    waiting: int
    delivered: int
    last_delivered_s: Seconds | None
    dropped: int
    problem: str | None
    code: str | None


class AlertsPage(BaseModel):
    """All that is known about alerts."""

    alerts: list[AlertBody]
    recent: list[AlertBody]
    silences: list[SilenceBody]
    receivers: list[ReceiverBody]
    is_watched: bool
    evaluated_s: Seconds | None
    unread: int = Field(description="records that were not evaluated yet")
    problem: str | None


class SilenceRequest(RequestBody):
    """Who and when are added by the service."""

    rule: Annotated[
        str, Field(min_length=1, max_length=40, description="a name; * for any letters")
    ]
    group: Annotated[str, Field(max_length=120)] = ""
    for_s: Annotated[float, Field(gt=0, le=30 * 86_400)]
    reason: Annotated[str, Field(min_length=1, max_length=300)]
    model_config = ConfigDict(
        **examples({"rule": "failures", "for_s": 3600, "reason": "known bad build"}),
        extra="forbid",
    )
