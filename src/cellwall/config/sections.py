"""The sections of guard, policy, hooks, roles, approvals, vault and retention."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    Section,
    Size,
    absolute_path,
    danger,
    listed,
    matching,
    number,
    one_of,
    size,
    word,
)
from cellwall.core.approvals import CHANNELS
from cellwall.core.limits import GIB, MIB
from cellwall.core.outcomes import SEVERITIES
from cellwall.core.types import INTERFACE_NAMES, OWNER, ROLE_NAMES

_CodeRule = Annotated[
    str,
    matching(
        r"code\.[a-z0-9.-]{0,100}\*?",
        'is not a code rule. Write for example "code.python.eval" or "code.*".',
    ),
]


def _check_code_pattern(text: str) -> str:
    severity, _, pattern = text.partition(" ")
    if severity not in SEVERITIES or not pattern.strip():
        raise PydanticCustomError(
            "pattern",
            'is not a code pattern. Write a severity and a pattern: "medium document\\\\.cookie".',
        )
    try:
        re.compile(pattern)  # RE2 accepts fewer forms; for the others the guard refuses all code
    except re.error:
        raise PydanticCustomError("pattern", "is not a regular expression.") from None
    return text


_File = Annotated[str, absolute_path("/etc/team/rules.toml")]
# A likely attack is never let through (GRD-3), but for `dangerously_only_annotate`.
_Any = Annotated[str, one_of("allow", "annotate", "neutralise", "ask", "block")]
_Acting = Annotated[str, one_of("neutralise", "ask", "block")]


class GuardSection(Section):
    """Treatment of attacks and secrets in texts; a signal, never the only boundary."""

    input_low: _Any = word(
        "a minor finding in the input of a model",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    input_medium: _Acting = word(
        "a likely attack in it: the sentence is removed, a person is asked, or all is refused",
        "neutralise", "ask", "block",
    )  # fmt: skip
    input_high: _Acting = word("a clear attack in it", "block", "ask", "neutralise")
    input_critical: _Acting = word(
        "an attack that also names a secret or an egress channel",
        "block",
        "ask",
        "neutralise",
    )
    output_low: _Any = word(
        "a minor finding in the output of a tool",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    output_medium: _Acting = word(
        "a likely attack in it; the rest of the output stays readable",
        "neutralise", "ask", "block",
    )  # fmt: skip
    output_high: _Acting = word("a clear attack in it", "neutralise", "ask", "block")
    output_critical: _Acting = word(
        "an attack in it that also names a secret or an egress channel",
        "block",
        "ask",
        "neutralise",
    )
    marking: Annotated[str, one_of("delimit", "datamark", "encode")] = word(
        "how results are marked as data for a model: between two lines with a number, also with a "
        "sign before each word, or encoded in base64",
        "delimit", "datamark", "encode",
    )  # fmt: skip
    personal_data: Annotated[str, one_of("keep", "hide")] = word(
        "whether a model sees e-mail addresses, phone numbers and the like, or tokens instead",
        "keep", "hide",
    )  # fmt: skip
    max_characters: int = number(
        4 << 20, "length of one text; the rest is neither scanned nor shown", least=1000,
        most=64 << 20,
    )  # fmt: skip
    max_shown_characters: int = number(
        200_000, "length of one text shown to a model; a longer one loses its middle", least=1000,
        most=16 << 20,
    )  # fmt: skip
    denied_code: tuple[_CodeRule, ...] = listed(
        (),
        "findings in code that refuse the run, as does code of that language that cannot be "
        "screened; a final `*` matches any suffix",
        most=256,
    )
    code_patterns: tuple[Annotated[str, AfterValidator(_check_code_pattern)], ...] = listed(
        (),
        "patterns for code of every language, each behind its severity; high and critical refuse",
        most=64,
    )
    rule_files: tuple[_File, ...] = listed((), "your own rules, beside the built-in ones", most=16)
    secret_rule_files: tuple[_File, ...] = listed(
        (), "secret patterns in gitleaks format, beside the built-in ones", most=16
    )
    dangerously_only_annotate: bool = danger("attacks in texts are reported and left in the text")


_DOMAIN = matching(
    r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*",
    'is not a domain. Write for example "wiki.example.com" or "*.example.com".',
)


class PolicySection(Section):
    """Rules for requests of agents; see the guide on policies."""

    files: tuple[Annotated[str, absolute_path("/etc/team/policy.toml")], ...] = listed(
        (),
        "policy files that judge every action, instead of the user's and the project's own",
        most=16,
    )
    rule_of_two: Annotated[str, one_of("ask", "deny", "show")] = word(
        "what follows where untrusted content, private data and egress would meet in one session: "
        "a person is asked, it is denied, or, in the development profile alone, only shown",
        "ask",
        "deny",
        "show",
    )
    dangerously_observe: bool = danger(
        "denials and questions are logged and not enforced; to find out which rules are needed"
    )
    dangerously_without_rule_of_two: bool = danger(
        "labels of information flow are shown and never ask, whatever `rule_of_two` says"
    )
    dangerously_trusted_domains: tuple[Annotated[str, _DOMAIN], ...] = listed(
        (),
        "domains whose content counts as trusted, and to which data may go: nobody else can write "
        "or read there",
        most=256,
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


RoleText = Annotated[str, one_of(*ROLE_NAMES, noun="a role")]


class RolesSection(Section):
    """Upper bounds of roles (RBAC-1). Of all that apply to a principal, the strictest counts."""

    default: RoleText = Field(
        default=OWNER,
        description="the role of users not named below; the user who starts Cellwall on a machine "
        "of their own owns it. It does not apply over HTTP, where an account has its own role",
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


class ApprovalsSection(Section):
    """How a person is asked where the policy asks (POL-8). No answer denies."""

    timeout_s: float = number(120.0, "no answer by then denies", least=1.0, most=86_400.0)
    channels: tuple[Annotated[str, one_of(*CHANNELS, noun="a channel")], ...] = listed(
        CHANNELS,
        "channels for answers: the terminal of the run, `cellwall approvals` in another terminal "
        "(the queue, which runs in the supervisor need as well), a function of the embedding "
        "program, the person at an MCP client (elicitation), the users of the service (http)",
        most=len(CHANNELS),
    )
    key: str = Field(
        default="",
        max_length=66,
        description="an approver's key, created by `cellwall approvals key`: an approval from "
        "another terminal then needs its passphrase, and no other channel is asked; standing "
        "grants (trusted policies, skills, grants of secrets, tools of MCP servers) count only "
        "with its signature",
    )


class VaultSection(Section):
    """The vault (SEC-1). `vault init` chooses the key source, and the vault stores it."""

    key: Annotated[str, one_of("passphrase", "file", "keyring", "command")] = word(
        "the key source: a passphrase, a file with a key, the system's keyring, or the output of "
        "a command",
        "passphrase",
        "file",
        "keyring",
        "command",
    )
    key_file: Annotated[str, absolute_path()] | None = Field(
        default=None, description="the file with the key, of mode 0600", max_length=4096
    )
    key_command: tuple[Annotated[str, Field(max_length=4096)], ...] = listed(
        (),
        "a program and its arguments that print the key, such as a client of a KMS; its absolute "
        "path, or a name in the system's program directories (PATH is not searched)",
        most=32,
    )
    argon2_memory_kib: int = number(
        65_536, "Argon2id memory for one passphrase guess", least=8, most=4_194_304
    )
    argon2_passes: int = number(3, "Argon2id passes", least=1, most=100)
    argon2_lanes: int = number(4, "Argon2id lanes", least=1, most=64)


class SnapshotsSection(Section):
    """Snapshots of workspaces, of each account and of the user of this machine (FS-9)."""

    keep_days: int = number(
        30, "a snapshot is removed after this time, or earlier if asked", least=1, most=3650
    )
    max_per_user: int = number(50, "snapshots of one user; 0 for none", least=0, most=10_000)
    max_bytes_per_user: Size = size(
        10 * GIB,
        "size of all layers of the snapshots of one user; shared layers count once",
        least=MIB,
        most=100_000 * GIB,
    )


class RetentionSection(Section):
    """How long data of sessions is kept, encrypted (FS-5). A hold on the audit log suspends it."""

    session_days: int | None = Field(
        default=None,
        description="the keys of data older than this are destroyed: records and kept workspaces "
        "can then no longer be read, and the service forgets who owned ended sessions; left out, "
        "never",
        ge=1,
        le=36_500,
    )
    workspaces_bytes: Size | None = size(
        None,
        "all kept workspaces together; the oldest are removed first; left out, no limit",
        least=MIB,
        most=100_000 * GIB,
    )
