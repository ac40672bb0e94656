"""Messages of code inside, agents, tool servers, browsers and authenticators."""

from __future__ import annotations

import base64
import json
from typing import Any

from mcp.types import CallToolResult, JSONRPCError
from webauthn.helpers import encode_cbor, parse_cbor

from cellwall.accounts.access_tokens import key_id
from cellwall.accounts.authenticator_data import check_attestation, check_authenticator_data
from cellwall.accounts.oidc import id_tokens
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.frames import BadFrame, FrameReader, ValueBudget, encode
from cellwall.guard.redact import Redactor
from cellwall.guard.scanning import Scanner
from cellwall.guard.tool_definitions import screen_definition
from cellwall.interfaces.hooks.agents.registry import AGENTS
from cellwall.interfaces.hooks.protocol import Malformed, ToolRequest
from cellwall.interfaces.hooks.settings_text import add_hooks, own_hooks, remove_hooks
from cellwall.interfaces.http import terminal
from cellwall.interfaces.http.forwarded import ForwardedClients
from cellwall.interfaces.supervisor.codec import decode_operation, encode_operation
from cellwall.mcp_servers.definitions import (
    BadDefinition,
    canonical,
    joined_texts_of,
    texts_of,
    tool_set,
)
from cellwall.mcp_servers.results import result_of
from cellwall.parsing.cbor import plain_end
from cellwall.parsing.jsonrpc import Lines, encode_message, parse_message
from fuzz.targets import target

_JSON_TOKENS = (
    b'{"',
    b'":',
    b'"}',
    b"[",
    b"]",
    b"null",
    b"true",
    b"1e999",
    b"\\ud800",
    b"\\u0000",
    b"NaN",
    b"-0",
)


@target("core.frames", tokens=(b"\0\0\0\2\0\0\0\0{}", *_JSON_TOKENS))
def cell_frames(data: bytes) -> None:
    """Frames between a cell and the supervisor: the same in any pieces; what was read is encoded alike"""

    def frames(step: int) -> tuple[list[Any], bool]:
        reader = FrameReader(max_frame_bytes=4096)
        reader.budget = ValueBudget()
        got: list[Any] = []
        try:
            for start in range(0, len(data), step):
                got.extend(reader.feed(data[start : start + step]))
        except BadFrame:
            return got, False
        return got, True

    whole = frames(max(len(data), 1))
    assert frames(7) == whole
    for frame in whole[0]:
        (again,) = FrameReader(max_frame_bytes=1 << 16).feed(encode(frame.message, frame.blob))
        assert again == frame


@target("interfaces.supervisor.codec", tokens=(
    b'"kind":', b'"command"', b'"argv":[', b'"cwd":"', b'"background":', b'"terminal":', b'"code"', b'"language":',
    b'"install"', b'"ecosystem":', b'"requirements":[', b'"process"', b'"number":', b'"size":[1,2]', b'"file"',
    b'"path":', b'"target":', b'"recursive":', b'"skip_links":', b'"domains":[', *_JSON_TOKENS,
))  # fmt: skip
def supervisor_request(data: bytes) -> None:
    """Requests of a client to the supervisor: an operation that encodes to itself, or one error"""
    text, _, blob = data.partition(b"\0")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(message, dict):
        return
    try:
        operation = decode_operation(message, blob)
    except BadInput as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    again, rest = encode_operation(operation)
    assert encode_operation(decode_operation(again, rest)) == (again, rest)


@target("parsing.jsonrpc", tokens=(
    b'"jsonrpc":"2.0"', b'"id":', b'"method":', b'"params":', b'"result":', b'"error":', b'"tools/call"', b"\n", *_JSON_TOKENS,
))  # fmt: skip
def json_rpc(data: bytes) -> None:
    """JSON-RPC lines of MCP clients and servers: a message that encodes to itself, or an error answer"""
    lines = Lines(1024)
    for line in [*lines.feed(data), *lines.feed(b"\n")]:
        parsed = line if isinstance(line, JSONRPCError) else parse_message(line, max_values=200)
        if parsed is None:
            continue
        if isinstance(parsed, JSONRPCError):
            assert len(parsed.error.message) < 200
            parsed.model_dump_json()
            continue
        written = encode_message(parsed)
        if written:
            again = parse_message(written)
            assert again is not None
            assert again.message == parsed.message  # type: ignore[union-attr]  # not an error


@target("mcp_servers.definitions", "guard.tool_definitions", tokens=(
    b'"name":', b'"description":', b'"inputSchema":{"type":"object"', b'"properties":{', b'"required":[', b'"annotations":{',
    b'"title":', b"IMPORTANT", b"~/.ssh/id_rsa", b"before using this tool", *_JSON_TOKENS,
))  # fmt: skip
def tool_definitions(data: bytes) -> None:
    """Tool definitions of MCP servers: one digest for each meaning, every text screened, or refused"""
    tools = _objects(data)
    if tools is None:
        return
    try:
        found = tool_set({"name": "server"}, tools)
    except BadDefinition:
        return
    again = tool_set({"name": "server"}, json.loads(json.dumps(tools)))
    assert found.sha256 == again.sha256
    for tool in found.tools.values():
        assert json.loads(canonical(tool.fields)) == tool.fields
        texts = list(texts_of(tool.fields))
        screen_definition(
            _SCANNER, texts, joined=joined_texts_of(tool.fields), foreign_tools=frozenset({"read"})
        )


_SCANNER = Scanner()


def _objects(data: bytes) -> list[dict[str, Any]] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return None
    return found


@target("mcp_servers.results", tokens=(
    b'"content":[', b'"type":"text"', b'"text":', b'"type":"image"', b'"mimeType":"image/png"', b'"data":', b'"isError":',
    b'"structuredContent":', b'"type":"resource"', b'"type":"resource_link"', b'"uri":', *_JSON_TOKENS,
))  # fmt: skip
def tool_result(data: bytes) -> None:
    """Results of MCP tools: a run result whose texts can be redacted, or refused by the model"""
    try:
        answer = CallToolResult.model_validate_json(data)
    except ValueError:
        return
    found = result_of(answer)
    if found.text is not None:
        Redactor().redact_text(found.text)
    json.dumps(found.results)


@target("interfaces.hooks", tokens=(
    b'"hook_event_name":', b'"PreToolUse"', b'"PostToolUse"', b'"tool_name":', b'"tool_input":{', b'"command":', b'"cwd":"/"',
    b'"session_id":', b'"permission_mode":', b'"tool_response":', b'"beforeShellExecution"', b'"toolName":', b'"toolArgs":',
    b'"conversation_id":', b'"BeforeTool"', b'"timestamp":', *_JSON_TOKENS,
))  # fmt: skip
def hook_request(data: bytes) -> None:
    """Hook requests of every supported agent: a request or report, or a refusal that can be shown"""
    for agent in AGENTS.values():
        try:
            found = agent.parse(data, after=False)
        except Malformed as error:
            assert str(error)  # noqa: PT017
            continue
        if isinstance(found, ToolRequest):
            assert found.uses


@target("interfaces.hooks.settings_text", tokens=(
    b'"hooks":{', b'"PreToolUse":[', b'"matcher":"*"', b'"type":"command"', b'"command":"cellwall hook"', b"//", b"/*", b",",
    *_JSON_TOKENS,
))  # fmt: skip
def agent_settings(data: bytes) -> None:
    """Settings files of agents: our hooks go in once and out again, other settings stay, or nothing changes"""
    for agent in AGENTS.values():
        commands = dict.fromkeys(agent.layout.events, "cellwall hook run")
        try:
            added = add_hooks(data, agent.layout, commands)
        except BadInput:
            continue
        assert add_hooks(added, agent.layout, commands) == added
        assert all(own_hooks(added, agent.layout).values())
        removed = remove_hooks(added, agent.layout)
        assert not any(own_hooks(removed, agent.layout).values())
        assert remove_hooks(removed, agent.layout) == removed


@target(
    "interfaces.http.terminal",
    "interfaces.http.forwarded",
    tokens=(b'"rows":', b'"columns":', b'"stdin":', *_JSON_TOKENS),
)
def terminal_message(data: bytes) -> None:
    """Messages of the WebSocket terminal and `X-Forwarded-For`: a size within bounds, or an error"""
    try:
        message = terminal._parsed(data)
    except BadInput:
        pass
    else:
        size = terminal._size(message)
        assert size is None or all(0 < side <= 10_000 for side in size)
    clients = ForwardedClients(None, proxies=["10.0.0.1"])  # type: ignore[arg-type]  # never called
    found = clients._client_of([data])
    assert found is None or found != "10.0.0.1"


@target("parsing.cbor", "accounts.authenticator_data", tokens=(
    b"\xa3\x63fmt\x64none", b"\x67attStmt\xa0", b"\x68authData\x58", b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20", b"\xd8\x1c",
    b"\x9f", b"\xff", b"\xfb", b"\x1b",
))  # fmt: skip
def passkey_cbor(data: bytes) -> None:
    """CBOR of authenticators: what passes has one meaning, since it is encoded again to the same bytes"""
    for check in (check_attestation, check_authenticator_data):
        try:
            check(data)
        except ValueError:
            continue
    try:
        end = plain_end(data)
    except ValueError:
        return
    assert 0 < end <= len(data)
    try:
        value = parse_cbor(data[:end])
    except Exception:  # the library's: invalid UTF-8, or two equal keys
        return
    if not _has_equal_keys(data[:end], value):
        assert encode_cbor(value) == data[:end]


def _has_equal_keys(data: bytes, value: object) -> bool:
    """Whether the decoder dropped something: a map with a key twice, or with keys that are equal."""
    return len(encode_cbor(value)) != len(data)


_TOKENS = (
    b"eyJ",
    b".",
    b'{"alg":"EdDSA"',
    b'"kid":"k"',
    b'"typ":"at+jwt"',
    b'{"alg":"RS256"',
    b"=",
    b"_",
    b"-",
)


@target("accounts.access_tokens", "accounts.oidc.id_tokens", tokens=_TOKENS)
def sign_in_token(data: bytes) -> None:
    """Access tokens and ID tokens: refused unless signed; claims of any shape get the declared error"""
    text = data.decode("latin-1")
    for read in (key_id, _read_id_token):
        try:
            read(text)
        except CellwallError as error:
            assert str(error).isprintable()  # noqa: PT017
    try:
        claims = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(claims, dict):
        try:
            id_tokens._check_claims(claims, issuer="https://i", client_id="c", now_s=1e9)
        except CellwallError:
            return
        assert claims["iss"] == "https://i"


def _read_id_token(token: str) -> None:
    x = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()
    keys = [{"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "k"}]
    id_tokens.verify(
        token, keys, issuer="https://i", client_id="c", nonce="n", algorithms=["EdDSA"], now_s=1e9
    )
