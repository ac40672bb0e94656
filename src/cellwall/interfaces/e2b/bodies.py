"""The bodies of requests, as the E2B SDKs send them. Fields of newer SDKs are ignored, except those
that ask for a feature that is not offered: see `refuse_unoffered`."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cellwall.core.errors import BadInput
from cellwall.core.snapshots import MAX_NAME_CHARS
from cellwall.interfaces.e2b.paths import below_workspace
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.http.checked_route import check_json
from cellwall.interfaces.http.sandboxes import MAX_KEEP_ALIVE_S
from cellwall.interfaces.sdk.snapshots import MAX_FORKS

Body = TypeVar("Body", bound="WireBody")
Variables = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=65_536)]],
    Field(max_length=200),
]


def _bounded_metadata(value: dict[str, str]) -> dict[str, str]:
    """Attack: metadata is kept in memory, also of paused sandboxes."""
    if sum(len(name) + len(text) for name, text in value.items()) > MAX_METADATA_LENGTH:
        raise ValueError(f"metadata has at most {MAX_METADATA_LENGTH} characters")
    return value


def _bounded_envs(value: dict[str, str]) -> dict[str, str]:
    """Attack: variables are kept in memory with a paused sandbox."""
    if sum(len(name) + len(text) for name, text in value.items()) > MAX_ENVS_LENGTH:
        raise ValueError(f"variables of a sandbox have at most {MAX_ENVS_LENGTH} characters")
    return value


MAX_METADATA_LENGTH = 16_384
MAX_ENVS_LENGTH = 65_536
Metadata = Annotated[Variables, AfterValidator(_bounded_metadata)]
KeptVariables = Annotated[Variables, AfterValidator(_bounded_envs)]
Path = Annotated[str, Field(max_length=4096), AfterValidator(below_workspace)]
LifetimeSeconds = Annotated[float, Field(ge=0, le=MAX_KEEP_ALIVE_S)]
Side = Annotated[int, Field(gt=0, le=1000)]
DEFAULT_LIFETIME_S = 300.0


def _decoded(value: object) -> object:
    """Bytes are base64 in the JSON of Protocol Buffers."""
    if not isinstance(value, str):
        return value
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None


Base64 = Annotated[bytes, BeforeValidator(_decoded)]


class WireBody(BaseModel):
    """A JSON object of a client."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


def parse(model: type[Body], content: bytes) -> Body:
    """The body; raises `BadInput` with the place of the first mistake, without its value."""
    check_json(content)
    try:
        found = json.loads(content or b"{}")
        return model.model_validate(found)
    except (ValueError, RecursionError) as error:
        text = "the body is not JSON"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][:4]) or "body"
            text = f"{place[:120]}: {str(first['msg'])[:200]}"
        raise BadInput(text, hint="The E2B SDK 2.x sends the expected form.") from None


class NetworkOptions(WireBody):
    """Egress of a sandbox. Nothing is reachable by default, so `denyOut` changes nothing."""

    allow_out: list[Annotated[str, Field(max_length=300)]] | None = Field(
        None, alias="allowOut", max_length=200
    )
    rules: Any = None
    egress_proxy: Any = Field(None, alias="egressProxy")
    dns_servers: Any = Field(None, alias="dnsServers")


class NewSandbox(WireBody):
    """`POST /v2/sandboxes`."""

    template: str = Field("base", alias="templateID", max_length=100)
    timeout: LifetimeSeconds = DEFAULT_LIFETIME_S
    metadata: Metadata = {}
    envs: KeptVariables = Field({}, alias="envVars")
    network: NetworkOptions | None = None
    auto_pause: bool | None = Field(None, alias="autoPause")
    mcp: Any = None
    iam: Any = None
    volume_mounts: Any = Field(None, alias="volumeMounts")

    def refuse_unoffered(self) -> None:
        """Raise for a feature whose absence would surprise the caller later."""
        network = self.network or NetworkOptions.model_validate({})
        asked = (
            (self.auto_pause, "on_timeout=pause", "a sandbox ends at its timeout"),
            (self.mcp, "mcp", "configure tool servers in the gateway of Cellwall"),
            (self.iam, "iam", "keep secrets in the vault of Cellwall"),
            (self.volume_mounts, "volumes", "files live in /workspace"),
            (network.rules, "network.rules", "keep secrets in the vault of Cellwall"),
            (network.egress_proxy, "egress_proxy", "egress goes through Cellwall's own proxy"),
            (network.dns_servers, "dns_servers", "names are resolved by Cellwall"),
        )
        for value, name, reason in asked:
            if value:
                raise not_offered(name, reason)


class NewLifetime(WireBody):
    """`POST /sandboxes/{id}/timeout`."""

    timeout: LifetimeSeconds


class Connection(WireBody):
    """`POST /v2/sandboxes/{id}/connect`."""

    timeout: LifetimeSeconds = DEFAULT_LIFETIME_S


class Pause(WireBody):
    """`POST /sandboxes/{id}/pause`."""

    memory: bool | None = None


class TakenSnapshot(WireBody):
    """`POST /sandboxes/{id}/snapshots`."""

    name: str = Field("", max_length=MAX_NAME_CHARS)
    memory: bool | None = None


class NewFork(WireBody):
    """`POST /sandboxes/{id}/fork`."""

    timeout: LifetimeSeconds = DEFAULT_LIFETIME_S
    count: int = Field(1, ge=1, le=MAX_FORKS)


class ProcessConfig(WireBody):
    """A program of envd's process service."""

    cmd: str = Field(max_length=4096)
    args: list[str] = Field([], max_length=10_000)
    envs: Variables = {}
    cwd: Path | None = None


class TerminalSize(WireBody):
    """Columns and rows."""

    cols: Side = 80
    rows: Side = 24


class Terminal(WireBody):
    """The terminal of a process."""

    size: TerminalSize = TerminalSize()


class StartRequest(WireBody):
    """`process.Process/Start`."""

    process: ProcessConfig
    pty: Terminal | None = None
    tag: str | None = Field(None, max_length=256)
    stdin: bool = True


class ProcessSelector(WireBody):
    """A process by its PID or its tag."""

    pid: int | None = None
    tag: str | None = Field(None, max_length=256)


class ProcessRequest(WireBody):
    """`Connect` and `CloseStdin`."""

    process: ProcessSelector


class ProcessInput(WireBody):
    """Bytes for a program or its terminal."""

    stdin: Base64 | None = None
    pty: Base64 | None = None

    @property
    def data(self) -> bytes:
        return self.stdin or self.pty or b""


class InputRequest(ProcessRequest):
    """`SendInput`."""

    input: ProcessInput


class NextInput(WireBody):
    """The next bytes of `StreamInput`."""

    input: ProcessInput


class InputEvent(WireBody):
    """One message of `StreamInput`."""

    start: ProcessRequest | None = None
    data: NextInput | None = None


class SignalRequest(ProcessRequest):
    """`SendSignal`."""

    signal: Literal["SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 9, 15]

    @property
    def number(self) -> int:
        return 9 if self.signal in {9, "SIGNAL_SIGKILL"} else 15


class UpdateRequest(ProcessRequest):
    """`Update`."""

    pty: Terminal | None = None


class PathRequest(WireBody):
    """`Stat`, `MakeDir` and `Remove`."""

    path: Path


class ListRequest(PathRequest):
    """`ListDir`."""

    depth: int = Field(1, ge=0, le=64)


class MoveRequest(WireBody):
    """`Move`."""

    source: Path
    destination: Path


class WatchRequest(PathRequest):
    """`WatchDir` and `CreateWatcher`."""

    recursive: bool = False
    include_entry: bool = Field(False, alias="includeEntry")


class WatcherRequest(WireBody):
    """`GetWatcherEvents` and `RemoveWatcher`."""

    watcher_id: str = Field(alias="watcherId", max_length=60)


class ExecuteRequest(WireBody):
    """`POST /execute`."""

    code: str
    context_id: str | None = Field(None, max_length=60)
    language: str | None = Field(None, max_length=40)
    env_vars: Variables | None = None


class NewContext(WireBody):
    """`POST /contexts`."""

    language: str | None = Field(None, max_length=40)
    cwd: Path | None = None


class Empty(WireBody):
    """A request without fields."""
