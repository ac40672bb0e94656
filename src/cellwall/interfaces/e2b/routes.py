"""All routes of the E2B endpoints. What is not offered answers 501 with the reason."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from cellwall.interfaces.e2b import code_routes, control_routes, file_routes, snapshot_routes
from cellwall.interfaces.e2b.access import caller_by_key
from cellwall.interfaces.e2b.filesystem_rpc import filesystem_routes
from cellwall.interfaces.e2b.problems import Handler, guarded, not_offered
from cellwall.interfaces.e2b.process_rpc import process_routes

PREFIX = "/e2b"
_SANDBOX = "/sandboxes/{sandbox_id}"
_WHY = {
    "network": "name the hosts in network.allow_out of Sandbox.create",
    "templates": "templates are made by `cellwall template`",
    "volumes": "files live in /workspace",
    "secrets": "secrets live in the vault of Cellwall",
    "logs": "the audit log has every action: GET /v1/audit",
}


async def refuse_unoffered(request: Request) -> Response:
    """Every other address, for callers that are known."""
    await caller_by_key(request)
    words = request.url.path.split("/")
    reason = next((why for word, why in _WHY.items() if word in words), "it has no such endpoint")
    name = next((word for word in _WHY if word in words), "this")
    raise not_offered(name, reason)


def e2b_routes() -> list[BaseRoute]:
    """One mount: a request to another interface tries one pattern, not thirty."""
    return [Mount(PREFIX, routes=_routes())]


def _routes() -> list[BaseRoute]:
    # Each request tries the patterns in order: what most clients ask for comes first.
    found: list[BaseRoute] = [
        _route("POST", "/execute", code_routes.execute),
        _route("POST", "/v2/sandboxes", control_routes.create_sandbox),
        _route("DELETE", _SANDBOX, control_routes.end_sandbox),
        *process_routes(),
        *filesystem_routes(),
        _route("GET", "/files", file_routes.download),
        _route("POST", "/files", file_routes.upload),
        _route("GET", "/health", file_routes.health),
        _route("GET", "/contexts", code_routes.list_contexts),
        _route("POST", "/contexts", code_routes.create_context),
        _route("DELETE", "/contexts/{context_id}", code_routes.remove_context),
        _route("POST", "/contexts/{context_id}/restart", code_routes.restart_context),
    ]
    found += [
        _route("GET", "/snapshots", snapshot_routes.list_snapshots),
        _route("POST", f"{_SANDBOX}/snapshots", snapshot_routes.create_snapshot),
        _route("POST", f"{_SANDBOX}/fork", snapshot_routes.fork_live),
        _route("DELETE", "/templates/{template_id}", snapshot_routes.delete_snapshot),
    ]
    found += [
        _route("POST", "/sandboxes", control_routes.create_sandbox),
        _route("DELETE", f"/v2{_SANDBOX}", control_routes.end_sandbox),
    ]
    for version in ("/v2", ""):
        found += [
            _route("GET", f"{version}/sandboxes", control_routes.list_sandboxes),
            _route("POST", f"{version}{_SANDBOX}/connect", control_routes.connect_sandbox),
            _route("POST", f"{version}{_SANDBOX}/pause", control_routes.pause_sandbox),
            _route("POST", f"{version}{_SANDBOX}/timeout", control_routes.set_timeout),
            _route("GET", f"{version}{_SANDBOX}/metrics", control_routes.get_metrics),
            _route("GET", f"{version}{_SANDBOX}", control_routes.get_sandbox),
        ]
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    found.append(Route("/{path:path}", guarded(refuse_unoffered), methods=methods))
    return found


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(path, guarded(handler), methods=[method])
