"""The control plane of E2B: create, list, connect, pause, end. A sandbox is a session of `/v1`."""

from __future__ import annotations

import ipaddress
import os
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cellwall.admin.accounts import Identity
from cellwall.core.errors import BadInput, ConfigError, NotFound
from cellwall.core.types import Permission
from cellwall.interfaces.e2b.access import caller_by_key
from cellwall.interfaces.e2b.bodies import (
    Connection,
    NewLifetime,
    NewSandbox,
    Pause,
    parse,
)
from cellwall.interfaces.e2b.creations import HEADER
from cellwall.interfaces.e2b.paths import timestamp
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.e2b.state import SandboxFacts, extend_lifetime, state_of
from cellwall.interfaces.http.callers import Caller, require
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.service import Service, service_of
from cellwall.interfaces.sdk.hosts import SandboxSpec

ENVD_VERSION = "0.6.4"
"""The newest whose features the SDKs ask for."""
DEFAULT_TEMPLATES = frozenset({"base", "code-interpreter-v1"})
"""What the SDKs name where a program names none."""
_REGISTRIES = {
    "pypi.org": "pypi",
    "files.pythonhosted.org": "pypi",
    "registry.npmjs.org": "npm",
}
"""Hosts that a sandbox reaches through the judging proxy for packages, not directly (PKG-1)."""
_ANY = frozenset({"0.0.0.0/0", "::/0", "*"})
SNAPSHOT_PREFIX = "snp_"
"""Of the ids of snapshots, which `create` takes in the place of a template."""
SECOND_USER_KEY = "cellwall.second_user"
"""Of the metadata, which alone a client of E2B can choose freely: "true" gives the sandbox a user
`root`, whom `user="root"` then names."""
_MIB = 1024 * 1024
_MAX_PAGE = 100


async def create_sandbox(request: Request) -> Response:
    """`POST /v2/sandboxes`, and `/sandboxes` for older clients."""
    service, caller = service_of(request), await caller_by_key(request)
    content = await request.body()
    body = parse(NewSandbox, content)
    body.refuse_unoffered()
    require(service, caller, Permission.SANDBOX_EXECUTE)
    key = request.headers.get(HEADER)
    if key is None:
        facts = await _create(request, caller, body)
        return JSONResponse(opened(request, caller, facts), status_code=201)
    creations = state_of(request).creations
    async with creations.lock(caller.id, key):
        made_id = creations.find(caller.id, key, content)
        found = None if made_id is None else await _find_live(request, caller, made_id)
        facts = found or await _create(request, caller, body)
        creations.add(caller.id, key, content, facts.public_id)
    return JSONResponse(opened(request, caller, facts), status_code=201)


async def _find_live(request: Request, caller: Caller, public_id: str) -> SandboxFacts | None:
    try:
        return (await _find(request, caller, public_id))[1]
    except NotFound:  # the sandbox has ended, and with it the use of its key
        return None


async def _create(request: Request, caller: Caller, body: NewSandbox) -> SandboxFacts:
    service = service_of(request)
    domains, registries = _egress(body)
    is_snapshot = body.template.startswith(SNAPSHOT_PREFIX)
    spec = replace(
        _plain_spec("python" if is_snapshot else _template(service, body.template)),
        allow_domains=domains,
        registries=registries,
        envs=body.envs,
        from_snapshot=body.template if is_snapshot else None,
        second_user=body.metadata.get(SECOND_USER_KEY) == "true",
    )
    made = await service.sandboxes.create(caller.identity, spec, keep_alive_s=body.timeout)
    extend_lifetime(made, body.timeout)
    return state_of(request).add(
        made, public_id=made.id, template=body.template, metadata=body.metadata, spec=spec
    )


def _plain_spec(template: str) -> SandboxSpec:
    """Without egress and variables; the limits of the service apply."""
    return SandboxSpec(
        workspace=None,  # a directory of the host is never a client's choice
        policy=None,  # nor is the policy
        allow_domains=(),
        registries=(),
        secrets=(),
        envs={},
        timeout=None,
        memory=None,
        limits={},
        template=template,
        skills=(),
    )


def _template(service: Service, name: str) -> str:
    """A template of the service by its name; the default ones of E2B are `python`, unless the
    service has templates of these names."""
    if name in DEFAULT_TEMPLATES and not service.app.defines_template(name):
        return "python"
    try:
        service.app.check_template(name)
    except (BadInput, ConfigError, NotFound):
        if name in DEFAULT_TEMPLATES:
            return "python"
        raise
    return name


def _egress(body: NewSandbox) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The domains and the registries of `network.allow_out`."""
    wanted = (body.network.allow_out if body.network else None) or []
    if any(each in _ANY for each in wanted):
        raise not_offered("access to every host", "name the hosts in network.allow_out")
    if any(_is_network(each) for each in wanted):
        raise not_offered("ranges of addresses", "name the hosts in network.allow_out")
    registries = {_REGISTRIES[each] for each in wanted if each in _REGISTRIES}
    domains = (each for each in wanted if each not in _REGISTRIES)
    return tuple(dict.fromkeys(domains)), tuple(sorted(registries))


def _is_network(text: str) -> bool:
    """Whether E2B means a range of addresses, which a rule would take for a host and a path."""
    address, slash, _bits = text.partition("/")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return bool(slash)


async def connect_sandbox(request: Request) -> Response:
    """`POST /v2/sandboxes/{id}/connect`, which also resumes a paused sandbox."""
    service, caller = service_of(request), await caller_by_key(request)
    body = parse(Connection, await request.body())
    require(service, caller, Permission.SANDBOX_EXECUTE)
    # Of concurrent clients one resumes the sandbox, and the others find it.
    async with state_of(request).resuming(caller.id):
        try:
            sandbox, facts = await find_sandbox(request, caller)
        except NotFound:
            sandbox, facts = await _resume(request, caller)
            extend_lifetime(sandbox, body.timeout)
            return JSONResponse(opened(request, caller, facts), status_code=201)
    if sandbox.ends_at is not None and body.timeout > sandbox.ends_in_s:
        extend_lifetime(sandbox, body.timeout)
    return JSONResponse(opened(request, caller, facts))


async def _resume(request: Request, caller: Caller) -> tuple[OwnedSandbox, SandboxFacts]:
    """A new session with the kept files, under the id that clients know. Programs and variables of
    the paused one are gone."""
    service, state = service_of(request), state_of(request)
    public_id = str(request.path_params["sandbox_id"])
    kept = await service.kept.find(caller.identity, state.session_id(public_id))
    before = state.known(kept.id)
    template = before.template if before else "base"
    spec = before.spec if before and before.spec else _plain_spec(_template(service, template))
    made = await service.sandboxes.create(
        caller.identity,
        replace(spec, from_snapshot=None),  # its files are among those that were kept
        keep_alive_s=1.0,
        resumed_id=kept.id,
    )
    metadata = before.metadata if before else {}
    facts = state.add(made, public_id=public_id, template=template, metadata=metadata, spec=spec)
    return made, facts


async def pause_sandbox(request: Request) -> Response:
    """`POST /sandboxes/{id}/pause`: the files are kept, encrypted; programs and variables end."""
    service, caller = service_of(request), await caller_by_key(request)
    body = parse(Pause, await request.body())
    if body.memory:
        raise not_offered("pausing with memory", "only files are kept; use mode='filesystem'")
    sandbox, _facts = await find_sandbox(request, caller)
    await service.kept.keep(caller.identity, sandbox.id)
    return Response(status_code=204)


async def set_timeout(request: Request) -> Response:
    """`POST /sandboxes/{id}/timeout`."""
    caller = await caller_by_key(request)
    body = parse(NewLifetime, await request.body())
    require(service_of(request), caller, Permission.SANDBOX_EXECUTE)
    sandbox, _facts = await find_sandbox(request, caller)
    extend_lifetime(sandbox, body.timeout)
    return Response(status_code=204)


async def end_sandbox(request: Request) -> Response:
    """`DELETE /sandboxes/{id}`: a live one with all in it, or the files of a paused one."""
    service, caller = service_of(request), await caller_by_key(request)
    try:
        sandbox, _facts = await find_sandbox(request, caller)
    except NotFound:
        name = state_of(request).session_id(str(request.path_params["sandbox_id"]))
        await service.kept.discard(caller.identity, caller.principal, name)
        return Response(status_code=204)
    if sandbox.owner_id != caller.id:  # shared by a team
        require(service, caller, Permission.SANDBOX_EXECUTE)
    await service.sandboxes.end(sandbox)
    return Response(status_code=204)


async def get_sandbox(request: Request) -> Response:
    """`GET /sandboxes/{id}`."""
    caller = await caller_by_key(request)
    sandbox, facts = await find_sandbox(request, caller)
    return JSONResponse(_described(request, sandbox, facts))


async def list_sandboxes(request: Request) -> Response:
    """`GET /v2/sandboxes`: those of the caller, by id. Paused ones as far as `state` asks."""
    service, caller = service_of(request), await caller_by_key(request)
    query = request.query_params
    states = {each for text in query.getlist("state") for each in text.split(",")}
    found: list[dict[str, Any]] = []
    if not states or "running" in states:
        live = service.sandboxes.of(caller.identity)
        found += [_described(request, each, state_of(request).facts_of(each)) for each in live]
    if not states or "paused" in states:
        found += await _paused(request, caller.identity)
    wanted = dict(parse_qsl(query.get("metadata", "")))
    after = query.get("nextToken", "")
    found = [
        each
        for each in sorted(found, key=lambda each: str(each["sandboxID"]))
        if wanted.items() <= each["metadata"].items() and each["sandboxID"] > after
    ]
    limit = page_size(query.get("limit", ""))
    headers = {"X-Next-Token": found[limit - 1]["sandboxID"]} if len(found) > limit else {}
    return JSONResponse(found[:limit], headers=headers)


def page_size(text: str) -> int:
    """The `limit` of a list."""
    if not text:
        return _MAX_PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= _MAX_PAGE:
        raise BadInput(f"limit is a number from 1 to {_MAX_PAGE}")
    return int(text)


async def _paused(request: Request, who: Identity) -> list[dict[str, Any]]:
    service, state = service_of(request), state_of(request)
    pairs = await service.kept.of(who, after="", limit=_MAX_PAGE)
    found = []
    for record, kept in pairs:
        facts = state.known(record.id) or SandboxFacts(state, record.id)
        if state.session_id(facts.public_id) != record.id:
            continue  # resumed since
        found.append(
            {
                "templateID": facts.template,
                "sandboxID": facts.public_id,
                "clientID": "cellwall",
                "startedAt": timestamp(record.created_s),
                "endAt": timestamp(kept.expires_s),
                "cpuCount": os.cpu_count() or 1,
                "memoryMB": 0,
                "diskSizeMB": kept.size_bytes // _MIB,
                "state": "paused",
                "envdVersion": ENVD_VERSION,
                "metadata": dict(facts.metadata),
            }
        )
    return found


async def get_metrics(request: Request) -> Response:
    """`GET /sandboxes/{id}/metrics`: one sample, of now."""
    service, caller = service_of(request), await caller_by_key(request)
    sandbox, _facts = await find_sandbox(request, caller)
    service.usages.sample()
    history = service.usages.of(sandbox.id)
    now_s = time.time()
    sample = {
        "timestamp": timestamp(now_s),
        "timestampUnix": int(now_s),
        "cpuCount": max(1, round(sandbox.limits.cpus)),
        "cpuUsedPct": round(100 * history.cpu[-1], 2) if history.cpu else 0.0,
        "memUsed": history.memory[-1] if history.memory else 0,
        "memTotal": sandbox.limits.memory_bytes,
        "memCache": 0,
        "diskUsed": 0,
        "diskTotal": sandbox.limits.disk_bytes,
    }
    start, end = (_seconds(request.query_params.get(name, "")) for name in ("start", "end"))
    is_asked = (start is None or start <= now_s) and (end is None or end >= int(now_s))
    return JSONResponse([sample] if is_asked else [])


def _seconds(text: str) -> float | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise BadInput("start and end are seconds since 1970")
    return float(text)


async def find_sandbox(request: Request, caller: Caller) -> tuple[OwnedSandbox, SandboxFacts]:
    """The sandbox that the path names."""
    return await _find(request, caller, str(request.path_params["sandbox_id"]))


async def _find(
    request: Request, caller: Caller, public_id: str
) -> tuple[OwnedSandbox, SandboxFacts]:
    state = state_of(request)
    name = state.session_id(public_id)
    sandbox = await service_of(request).sandboxes.find(caller.identity, name)
    return sandbox, state.facts_of(sandbox)


def opened(request: Request, caller: Caller, facts: SandboxFacts) -> dict[str, Any]:
    """A sandbox with new tokens, as `create` answers."""
    revision: int = request.state.revision
    tokens = facts.state.tokens.issue(caller.identity, facts.public_id, revision=revision)
    return {
        "templateID": facts.template,
        "sandboxID": facts.public_id,
        "clientID": "cellwall",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": tokens.envd,
        "trafficAccessToken": tokens.traffic,
        "domain": _domain(request),
    }


def _described(request: Request, sandbox: OwnedSandbox, facts: SandboxFacts) -> dict[str, Any]:
    limits = sandbox.limits
    return {
        "templateID": facts.template,
        "sandboxID": facts.public_id,
        "clientID": "cellwall",
        "startedAt": timestamp(sandbox.made_s),
        "endAt": timestamp(time.time() + sandbox.ends_in_s),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // _MIB,
        "diskSizeMB": limits.disk_bytes // _MIB,
        "state": "running",
        "envdVersion": ENVD_VERSION,
        "metadata": dict(facts.metadata),
        "domain": _domain(request),
    }


def _domain(request: Request) -> str | None:
    """For `get_host`: the domain of servers inside."""
    settings = service_of(request).settings
    return settings.preview_authority if settings.preview_domain else None
