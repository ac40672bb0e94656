"""The sections about agents and people: rules, hooks, roles, approvals."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, danger, listed, number, one_of, word
from cellwall.core.approvals import CHANNELS
from cellwall.core.roles import INTERFACE_NAMES, OWNER, ROLE_NAMES


class PolicySection(Section):
    """Rules for requests of agents; see the guide on policies."""

    files: tuple[Annotated[str, absolute_path("/etc/team/policy.toml")], ...] = listed(
        (),
        "policy files that judge every action, instead of the user's and the project's own",
        most=16,
    )
    dangerously_observe: bool = danger(
        "denials and questions are logged and not enforced; to find out which rules are needed"
    )


class HookSection(Section):
    """Answers of `cellwall hook` to an agent before a tool call."""

    dangerously_outside: bool = danger(
        "allowed shell commands run on the host with all rights of the user, not in a sandbox "
        "with the project"
    )
    questions: Annotated[str, one_of("agent", "nobody")] = word(
        "who is asked where a rule asks: the person at the agent's own prompt, or nobody, which "
        "denies",
        "agent",
        "nobody",
    )


def _check_role(text: str) -> str:
    if text not in ROLE_NAMES:
        raise PydanticCustomError("role", f"is not a role. Write one of {', '.join(ROLE_NAMES)}.")
    return text


def _check_interfaces(table: dict[str, str]) -> dict[str, str]:
    # A misspelled name would silently leave that interface unbounded.
    if not table.keys() <= set(INTERFACE_NAMES):
        raise PydanticCustomError(
            "interface", f"names an unknown interface. Known: {', '.join(INTERFACE_NAMES)}."
        )
    return table


def _check_users(table: dict[str, str]) -> dict[str, str]:
    if not all(0 < len(name) <= 64 and name.isprintable() for name in table):
        raise PydanticCustomError("user", "has an invalid user name.")
    return table


RoleText = Annotated[str, AfterValidator(_check_role)]


class RolesSection(Section):
    """Upper bounds of roles (RBAC-1). Of all that apply to a principal, the strictest counts."""

    default: RoleText = Field(
        default=OWNER,
        description="the role of users not named below; the user who starts Cellwall on a machine "
        "of their own owns it",
        max_length=32,
        json_schema_extra={"enum": list(ROLE_NAMES)},
    )
    users: Annotated[dict[str, RoleText], AfterValidator(_check_users)] = Field(
        default={}, description="roles of single users, by name", max_length=1000
    )
    interfaces: Annotated[dict[str, RoleText], AfterValidator(_check_interfaces)] = Field(
        default={},
        description="the highest role through this interface; an agent's hook needs less than "
        "its owner has",
        max_length=len(INTERFACE_NAMES),
    )


def _check_channel(text: str) -> str:
    if text not in CHANNELS:
        raise PydanticCustomError("channel", f"is not a channel. Known: {', '.join(CHANNELS)}.")
    return text


class ApprovalsSection(Section):
    """How a person is asked where the policy asks (POL-8). No answer denies."""

    timeout_s: float = number(120.0, "no answer by then denies", least=1.0, most=86_400.0)
    channels: tuple[Annotated[str, AfterValidator(_check_channel)], ...] = listed(
        CHANNELS,
        "channels for answers: the terminal of the run, `cellwall approvals` in another terminal "
        "(the queue, which runs in the supervisor need as well), a function of the embedding "
        "program, the person at an MCP client (elicitation)",
        most=len(CHANNELS),
    )
    key: str = Field(
        default="",
        max_length=66,
        description="an approver's key, created by `cellwall approvals key`: an approval from "
        "another terminal then needs its passphrase, and the terminal of the run is not asked",
    )
