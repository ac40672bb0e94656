"""The emergency stop."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples

Reason = Annotated[str, Field(max_length=500, description="kept in the record")]


class StopRequest(RequestBody):
    """How to stop."""

    reason: Reason = ""
    freeze: bool = Field(False, description="suspend instead of end, for evidence")
    revoke_tokens: bool = Field(
        False, description="end every token of every user, that of the caller as well"
    )
    model_config = examples({"reason": "an agent reads foreign mail", "revoke_tokens": True})


class StopResult(BaseModel):
    """What a stop has done."""

    cells: int = Field(description="sandboxes and templates that were ended or suspended")
    processes: int
    left: list[str] = Field(description="sandboxes with a process that did not end")
    took_s: float
    problems: list[str] = Field(description="failures that did not keep the sandboxes from ending")


class StopStatusBody(BaseModel):
    """Whether a stop is in effect, and what is alive."""

    is_stopped: bool
    by: str
    reason: str
    since: Seconds
    cells: int
    frozen: int


class Thawed(BaseModel):
    """The number of sandboxes that continue."""

    cells: int


class Lifted(BaseModel):
    """Whether a stop was in effect."""

    lifted: bool
