"""The bodies of requests and responses, with examples: the source of the OpenAPI document."""

from cellwall.interfaces.http.bodies.base import ERRORS, ErrorResponse, RequestBody

__all__ = ["ERRORS", "ErrorResponse", "RequestBody"]
