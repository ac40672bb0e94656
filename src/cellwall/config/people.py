"""The sections about agents and people: rules, hooks, roles, approvals."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import PATH_MOST_BYTES, Section, danger, listed, number, one_of, word
from cellwall.core.approvals import CHANNELS
from cellwall.core.roles import INTERFACE_NAMES, OWNER, ROLE_NAMES


def _check_policy_file(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or len(text.encode()) > PATH_MOST_BYTES:
        raise PydanticCustomError(
            "path", 'is not an absolute path. Write for example "/etc/team/policy.toml".'
        )
    return text


class PolicySection(Section):
    """Rules for what agents ask for; see the guide on policies."""

    files: tuple[Annotated[str, AfterValidator(_check_policy_file)], ...] = listed(
        (),
        "policy files that judge every action, in place of the user's and the project's own",
        most=16,
    )
    dangerously_observe: bool = danger(
        "what would be denied or asked about is only recorded as such, and goes on; to find out "
        "which rules are needed"
    )


class HookSection(Section):
    """What `cellwall hook` answers to an agent that asks before it uses a tool."""

    dangerously_outside: bool = danger(
        "shell commands that are allowed run as the agent would run them, with all that its user "
        "may do, and not in a sandbox with the project"
    )
    questions: Annotated[str, one_of("agent", "nobody")] = word(
        "who is asked where a rule says so: the person at the agent's own prompt, or nobody, and "
        "then it is denied",
        "agent",
        "nobody",
    )


def _check_role(text: str) -> str:
    if text not in ROLE_NAMES:
        raise PydanticCustomError("role", f"is not a role. Write one of {', '.join(ROLE_NAMES)}.")
    return text


def _check_interfaces(table: dict[str, str]) -> dict[str, str]:
    # A misspelled name would leave that interface unbounded, in silence.
    if not table.keys() <= set(INTERFACE_NAMES):
        raise PydanticCustomError(
            "interface", f"names an unknown interface. Known: {', '.join(INTERFACE_NAMES)}."
        )
    return table


def _check_users(table: dict[str, str]) -> dict[str, str]:
    if not all(0 < len(name) <= 64 and name.isprintable() for name in table):
        raise PydanticCustomError("user", "has a name that no user can have.")
    return table


RoleText = Annotated[str, AfterValidator(_check_role)]


class RolesSection(Section):
    """Who may do what at most (RBAC-1). Of all that is said about somebody the strictest counts."""

    default: RoleText = Field(
        default=OWNER,
        description="the role of users that are not named below; who starts Cellwall on their own "
        "machine owns it",
        max_length=32,
        json_schema_extra={"enum": list(ROLE_NAMES)},
    )
    users: Annotated[dict[str, RoleText], AfterValidator(_check_users)] = Field(
        default={}, description="roles of single users, by name", max_length=1000
    )
    interfaces: Annotated[dict[str, RoleText], AfterValidator(_check_interfaces)] = Field(
        default={},
        description="the most that anybody may be who comes through this interface; an agent's "
        "hook needs less than its owner has",
        max_length=len(INTERFACE_NAMES),
    )


def _check_channel(text: str) -> str:
    if text not in CHANNELS:
        raise PydanticCustomError("channel", f"is no channel. Known: {', '.join(CHANNELS)}.")
    return text


class ApprovalsSection(Section):
    """How a person is asked where policy says so (POL-8). Without an answer it is a denial."""

    timeout_s: float = number(
        120.0, "who has not answered by then has said no", least=1.0, most=86_400.0
    )
    channels: tuple[Annotated[str, AfterValidator(_check_channel)], ...] = listed(
        CHANNELS,
        "where answers may come from: the terminal of the run, `cellwall approvals` in another one "
        "(the queue, which runs in the supervisor need too), a function of the embedding program, "
        "the person at an MCP client (elicitation)",
        most=len(CHANNELS),
    )
    key: str = Field(
        default="",
        max_length=66,
        description="the key of an approver, made by `cellwall approvals key`: a yes from another "
        "terminal then needs its passphrase, and the prompt of a run is not asked",
    )
