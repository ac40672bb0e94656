"""What all bodies share, and the form of every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cellwall.core.errors import BadInput

NO_NUL = r"^[^\x00]*$"
"""For texts that a database looks up: PostgreSQL fails on a NUL."""
FormBody = TypeVar("FormBody", bound=BaseModel)
Seconds = Annotated[float, Field(description="seconds since 1970, UTC")]


def examples(*found: dict[str, Any]) -> ConfigDict:
    """The configuration of a model with examples."""
    return ConfigDict(json_schema_extra={"examples": list(found)})


class RequestBody(BaseModel):
    """An unknown field is an error: a misspelled limit must not be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorBody(BaseModel):
    """The content of every error."""

    code: str = Field(examples=["CW-NOT-FOUND"])
    message: str = Field(examples=["there is no such session"])
    hint: str = Field(examples=["Check the id, and who owns it."])
    audit_id: str = Field(description="the record of a refusal; empty where there is none")


class ErrorResponse(BaseModel):
    """The form of every error."""

    error: ErrorBody


# By reference: FastAPI makes a validator for each model that each route names, which would be a
# thousand equal ones, and most of the time that a service takes for its first answer.
_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is malformed."}  # names the schema
}
ERRORS |= {
    status: {"content": _CONTENT, "description": text}
    for status, text in {
        401: "No valid access token came with the request.",
        403: "A rule, a role or a person refused the action.",
        404: "The caller has nothing of this name.",
        409: "The state of the resource does not permit it.",
        413: "The body is too large.",
        421: "The service does not go by this name, or another process has the resource.",
        422: "The Idempotency-Key was used for another request.",
        429: "Too many requests, failed sign-ins or live sandboxes.",
        503: "The host has no capacity, or the service is stopping.",
    }.items()
}


def body_of(model: type[FormBody], values: Mapping[str, object]) -> FormBody:
    """A body from the fields of a form; raises `BadInput` without the value, which may be a
    secret."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{place}: {first['msg']}", hint="Check the field.") from None
