"""Secrets: values go in, metadata comes out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr

from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples

Port = Annotated[int, Field(ge=1, le=65_535)]
Method = Annotated[str, Field(max_length=33)]


class GrantRequest(RequestBody):
    """A place in matching requests, the only one where the value is put in."""

    host: str = Field(max_length=253)
    ports: list[Port] = Field([443], min_length=1, max_length=16)
    methods: list[Method] = Field([], max_length=16, description="empty: any")
    path: str = Field("/", max_length=1024, description="a prefix")
    place: Literal["header", "basic", "query"] = "header"
    name: str = Field("authorization", max_length=64, description="of the header or field")
    until: Seconds | None = None
    model_config = examples({"host": "api.example.com", "path": "/v1/"})


class SecretRequest(RequestBody):
    """A new value, new grants in place of all old ones, or both."""

    value: SecretStr | None = Field(None, max_length=65_536)
    grants: list[GrantRequest] | None = Field(None, max_length=64)
    model_config = examples({"value": "…", "grants": [{"host": "api.example.com"}]})


class GrantBody(BaseModel):
    """Where a secret may be sent."""

    id: str
    host: str
    ports: list[int]
    methods: list[str]
    path: str
    place: str
    name: str
    until: Seconds | None


class SecretBody(BaseModel):
    """All that is ever shown of a secret."""

    name: str = Field(examples=["GITHUB_TOKEN"])
    version: int
    created: Seconds
    changed: Seconds
    grants: list[GrantBody]


class SecretList(BaseModel):
    """The caller's secrets, by name."""

    secrets: list[SecretBody]
