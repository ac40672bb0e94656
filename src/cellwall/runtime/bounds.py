"""Step 1: nothing unbounded or malformed goes further. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cellwall.core.channel_messages import CHANNEL_NAMES, ReceiveMessage, SendReply
from cellwall.core.command_scripts import MAX_ARGUMENT_BYTES, long_script
from cellwall.core.connections import UseAccount
from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation
from cellwall.core.ids import check_id
from cellwall.core.languages import NAMES, canonical
from cellwall.core.limits import Limits
from cellwall.core.network import PROXY_PORT
from cellwall.core.packages import REGISTRIES, InstallPackages, parse_install
from cellwall.core.port_connections import ConnectPort
from cellwall.core.skills import Skill
from cellwall.core.snapshots import (
    RestoreSnapshot,
    TakeSnapshot,
    check_snapshot,
    variables_in,
)
from cellwall.core.text import to_bytes
from cellwall.core.tool_servers import (
    CallServerTool,
    RunServer,
    check_server_name,
    is_tool_name,
)
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
)
from cellwall.core.users_inside import SANDBOX_USER, no_second_user, parse_user
from cellwall.runtime.egress import check_domain
from cellwall.runtime.tool_bounds import MAX_PATH, check_json, check_tool
from cellwall.skills.manifest import check_name

_MAX_ARGUMENTS = 4000
# The kernel allows a quarter of the stack's limit, 2 MiB as a rule, for arguments and variables.
_MAX_ARGUMENTS_BYTES = 1536 * 1024
_MAX_VARIABLES = 512
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_MAX_DOMAINS = 10_000
_MAX_SECRETS = 64
_MAX_URL = 8192
_CLIENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
MAX_MESSAGE_BYTES = 1024 * 1024
"""One message of a channel, in its raw form."""
_MAX_SKILLS = 32
_PAGE_BYTES = 4096
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionBounds:
    """Upper bounds of an action."""

    max_code_bytes: int
    max_stdin_bytes: int
    allowed_languages: tuple[str, ...] = NAMES

    def check(self, action: Action) -> None:
        """Raise `BadInput` for the first thing out of bounds."""
        check_id(action.id, what="action id")
        if action.session_id is not None:
            check_id(action.session_id, what="session id")
        self._check_operation(action)
        if action.stdin is not None and len(action.stdin) > self.max_stdin_bytes:
            raise BadInput(
                f"standard input is larger than the {self.max_stdin_bytes} bytes allowed",
                hint="Give the data as a file in the workspace.",
                code="CW-STDIN-TOO-LARGE",
            )
        _check_user(action)
        _check_env(action)
        _check_egress(action)
        _check_skills(action.skills)
        if not isinstance(action.template, str):
            raise BadInput(
                "the template must be given by name",
                hint="`cellwall template list` shows the templates.",
                code="CW-NO-TEMPLATE",
            )
        to_bytes(action.workspace.directory or "", what="the workspace's name")

    def _check_operation(self, action: Action) -> None:  # noqa: C901  # one case for each operation
        match action.operation:
            case RunCommand() as command:
                self._check_command(command)
            case RunCode(language, code, context):
                self._check_language(language)
                check_id(context or action.id, what="context")  # the empty one is the first
                self._check_code(code)
            case ProcessOperation(data=data, size=size):
                _check_size(size, least=0)
                if len(data) > self.max_stdin_bytes:
                    raise BadInput("too much input in one call", code="CW-STDIN-TOO-LARGE")
            case ConnectPort(port):
                _check_port(port)
            case CallTool():
                pass  # arrived in a frame, whose size is bounded
            case UseTool() | ToolResult() as use:
                check_tool(use)
            case InstallPackages() | FetchUrl() | CallServerTool() | RunServer() as reach:
                _check_reach(reach, action.session_id)
            case ReachHost() as reach_host:
                check_domain(reach_host.destination)
            case ServeClient(client):
                _check_client(client, action.session_id)
            case ReceiveMessage() | SendReply() as message:
                _check_message(message)
            case UseAccount() as use_account:
                from cellwall.runtime.calendars import check_use  # noqa: PLC0415  # few use one

                check_use(use_account)
            case TakeSnapshot() | RestoreSnapshot() as operation:
                _check_snapshot(operation, action.session_id)
            case SetDomains() | FileOperation():
                # The action repeats the domains; paths are bounded where they are resolved, sizes
                # by the workspace's limits.
                pass

    def _check_code(self, code: bytes) -> None:
        if len(code) > self.max_code_bytes:
            raise BadInput(
                f"the code has {len(code)} bytes; {self.max_code_bytes} are allowed",
                hint="Put data into a file in the workspace, or raise sandbox.max_code_bytes.",
                code="CW-CODE-TOO-LARGE",
            )
        if b"\0" in code:
            raise BadInput(
                "the code holds a NUL byte, so it is not program text",
                hint="Check that the file is source code.",
                code="CW-NUL-BYTE",
            )

    def _check_command(self, command: RunCommand) -> None:
        at = None if command.terminal is not None else long_script(command.argv)
        if at is None:
            _check_words(command.argv)
        else:  # it is given as a file, and counts as code
            script = command.argv[at]
            _check_words((*command.argv[:at], *command.argv[at + 1 :]))
            self._check_code(to_bytes(script, what="an argument"))
        _check_place(command)

    def _check_language(self, language: str) -> None:
        name = canonical(language)
        if name not in self.allowed_languages:
            raise BadInput(
                f"{name} is not one of the languages allowed here",
                hint=f"Allowed: {', '.join(self.allowed_languages) or 'none'} "
                "(sandbox.allowed_languages in the configuration).",
                code="CW-LANGUAGE-NOT-ALLOWED",
            )


def _check_port(port: object) -> None:
    if type(port) is not int or not 0 < port <= _MAX_PORT:
        raise BadInput("a port is a number from 1 to 65535", code="CW-BAD-PORT")
    if port == PROXY_PORT:
        # Attack: who may see a page of the sandbox uses the egress of its code.
        raise BadInput("this port is the sandbox's egress proxy, not a server", code="CW-BAD-PORT")


def _check_snapshot(operation: TakeSnapshot | RestoreSnapshot, session_id: str | None) -> None:
    if isinstance(operation, RestoreSnapshot):
        check_id(operation.snapshot, what="snapshot id")
        return
    if session_id is None:
        raise BadInput("only a live sandbox has files to take a snapshot of")
    check_snapshot(operation.name, operation.ttl_s)
    variables_in(operation.state)


def _check_reach(
    operation: InstallPackages | FetchUrl | CallServerTool | RunServer, session_id: str | None
) -> None:
    if isinstance(operation, CallServerTool | RunServer):
        _check_server(operation, session_id)
    elif isinstance(operation, FetchUrl):
        if len(operation.url) > _MAX_URL:
            raise BadInput("the address is too long", hint="Shorten it.", code="CW-BAD-URL")
    elif parse_install(operation.ecosystem, operation.requirements) != replace(
        operation, only_build=False
    ):
        raise BadInput(
            "the packages are not normalised",
            hint="Build the operation with `parse_install`.",
            code="CW-BAD-PACKAGE",
        )


def _check_message(message: ReceiveMessage | SendReply) -> None:
    check_id(message.pairing, what="pairing id")
    if message.channel not in CHANNEL_NAMES:
        raise BadInput(
            "there is no such channel",
            hint=f"Use one of: {', '.join(CHANNEL_NAMES)}.",
            code="CW-BAD-CHANNEL",
        )
    size = len(to_bytes(message.content, what="the message"))
    if size > MAX_MESSAGE_BYTES:
        raise BadInput(
            f"the message is larger than the {MAX_MESSAGE_BYTES} bytes allowed",
            hint="Send it without attachments.",
            code="CW-MESSAGE-TOO-LARGE",
        )


def _check_server(operation: CallServerTool | RunServer, session_id: str | None) -> None:
    check_server_name(operation.server)
    if isinstance(operation, RunServer):
        _check_words(operation.argv)
        if session_id is None:
            raise BadInput("a server runs in a live sandbox", code="CW-MCP-NAME")
    elif not is_tool_name(operation.tool):
        raise BadInput("the name of the tool is not valid", code="CW-BAD-TOOL")
    else:
        check_json(operation.arguments, is_text=True)


def _check_client(client: str, session_id: str | None) -> None:
    """The name stands in a URL, in file names and in the audit log."""
    if _CLIENT.fullmatch(client) is None:
        raise BadInput(
            "the name of a client has at most 32 lower-case letters, digits and inner hyphens",
            hint="For example --client build-agent.",
            code="CW-BAD-CLIENT",
        )
    if session_id is not None:
        raise BadInput("a client outside belongs to no live sandbox", code="CW-BAD-CLIENT")


def _check_place(command: RunCommand) -> None:
    place = to_bytes(command.cwd, what="the working directory")
    if not place.startswith(b"/") or len(place) > MAX_PATH or b"\0" in place:
        raise BadInput(
            "the working directory must be an absolute path in the sandbox, such as /workspace",
            code="CW-BAD-DIRECTORY",
        )
    if command.terminal is not None:
        _check_size(command.terminal, least=1)


def _check_size(size: tuple[int, int], *, least: int) -> None:
    if not all(type(side) is int and least <= side < 10_000 for side in size):
        raise BadInput(
            "a terminal has from 1 to 9,999 rows and columns",
            hint="Give rows and columns as whole numbers, for example 24 and 80.",
            code="CW-BAD-TERMINAL",
        )


def _check_words(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0]:
        hint = "Write it after `--`, for example: cellwall run -- ls -la"
        raise BadInput("no command was given", hint=hint)
    sizes = [len(to_bytes(word, what="an argument")) for word in argv]
    too_long = max(sizes) > MAX_ARGUMENT_BYTES or sum(sizes) > _MAX_ARGUMENTS_BYTES
    if len(argv) > _MAX_ARGUMENTS or too_long:
        raise BadInput(
            "the command line is too long: the kernel takes less than 128 KiB in one argument, and "
            f"{_MAX_ARGUMENTS_BYTES // 1024} KiB in {_MAX_ARGUMENTS} arguments are allowed",
            hint="Give long data through a file or standard input. A script of `sh -c` or "
            "`python -c` may have sandbox.max_code_bytes.",
            code="CW-ARGUMENTS-TOO-LONG",
        )
    if any("\0" in word for word in argv):
        raise BadInput("an argument holds a NUL byte", hint="Remove it.", code="CW-NUL-BYTE")


def check_skill_size(skills: Sequence[Skill], limits: Limits) -> None:
    """Skills are copied into the run's memory: too many would exceed its limit at the start."""
    needed = sum(skill.size_bytes + _PAGE_BYTES * len(skill.files) for skill in skills)
    if needed > limits.memory_bytes // 2:
        raise BadInput(
            "the skills need more than half of the run's memory",
            hint="Raise the memory limit, or name fewer skills.",
            code="CW-SKILL-TOO-LARGE",
        )


def _check_user(action: Action) -> None:
    operation = action.operation
    if isinstance(operation, RunCommand):
        user = parse_user(operation.user)
        if user != SANDBOX_USER and not action.second_user:
            raise no_second_user()


def _check_skills(names: tuple[str, ...]) -> None:
    if len(names) > _MAX_SKILLS:
        raise BadInput(f"more than {_MAX_SKILLS} skills", code="CW-SKILL-TOO-MANY")
    for name in names:
        check_name(name)


def _check_env(action: Action) -> None:
    variables = [*action.env.items(), *action.brief.items()]
    if len(variables) > _MAX_VARIABLES:
        raise BadInput(f"more than {_MAX_VARIABLES} variables", code="CW-BAD-ENV")
    for name, value in variables:
        if _NAME.fullmatch(name) is None:
            raise BadInput(
                f"{name[:60]!r} is not a valid variable name",
                hint="Use letters, digits and underscores.",
                code="CW-BAD-ENV",
            )
        size = len(to_bytes(value, what=f"the value of {name}"))
        if "\0" in value or size > MAX_ARGUMENT_BYTES:
            raise BadInput(
                f"the value of {name} holds a NUL byte or is too long",
                hint="Give long or binary data through a file.",
                code="CW-BAD-ENV",
            )


def _check_egress(action: Action) -> None:
    if len(action.allow_domains) > _MAX_DOMAINS:
        raise BadInput(f"more than {_MAX_DOMAINS} allowed domains", code="CW-BAD-DOMAIN")
    for text in action.allow_domains:
        check_domain(text)
    for name in action.registries:
        if name not in REGISTRIES:
            raise BadInput(
                f"{name[:60]!r} is not a package registry",
                hint=f"Write one of: {', '.join(REGISTRIES)}.",
                code="CW-BAD-REGISTRY",
            )
    if len(action.secrets) > _MAX_SECRETS:
        raise BadInput(f"more than {_MAX_SECRETS} secrets", code="CW-VAULT-NAME")
    for name in action.secrets:
        if _NAME.fullmatch(name) is None:
            raise BadInput(
                f"{name[:60]!r} is not the name of a secret",
                hint="`cellwall vault list` shows the names.",
                code="CW-VAULT-NAME",
            )
