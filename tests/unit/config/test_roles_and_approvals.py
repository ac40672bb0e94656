"""The sections that say who may do what, and how people are asked (RBAC-1, POL-8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.config.sections import ApprovalsSection, RolesSection
from cellwall.core.errors import ConfigError


def load(text: str, folder: Path) -> tuple[RolesSection, ApprovalsSection]:
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    settings = load_settings(file=str(path), environ={"HOME": "/nonexistent"})
    return settings.roles, settings.approvals


@pytest.mark.requirement("RBAC-1", "CFG-2")
def test_roles_are_given_to_users_and_interfaces(tmp_path: Path) -> None:
    text = """
    [roles]
    default = "power-user"
    [roles.users]
    alice = "user"
    "uid:1000" = "guest"
    [roles.interfaces]
    hook = "user"
    """
    roles, approvals = load(text, tmp_path)
    assert roles == RolesSection(
        default="power-user",
        users={"alice": "user", "uid:1000": "guest"},
        interfaces={"hook": "user"},
    )
    assert approvals == ApprovalsSection()


def test_without_a_word_who_starts_it_owns_it_and_every_channel_is_open(tmp_path: Path) -> None:
    roles, approvals = load("", tmp_path)
    assert (roles.default, roles.users, roles.interfaces) == ("owner", {}, {})
    assert approvals.timeout_s == 120.0
    assert approvals.channels == ("terminal", "queue", "callback", "elicitation", "http")


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[roles]\ndefault = "root"', '2: roles.default: "root" is not a role. Write one of guest'),
        ("[roles]\ndefault = 3", "2: roles.default: 3 is not a text."),
        ('[roles.users]\nann = "Owner"', '2: roles.users.ann: "Owner" is not a role.'),
        ("[roles.users]\nann = []", "2: roles.users.ann: a list is not a text."),
        ('[roles.users]\n"a\\n" = "user"', "1: roles.users: a table has an invalid user name"),
        ('[roles.users]\n"" = "user"', "1: roles.users: a table has an invalid user name"),
        ("[roles]\nusers = 3", "2: roles.users: 3 is not a table of names"),
        ('[roles.interfaces]\nhok = "user"', "1: roles.interfaces: a table names an unknown interface. Known: cli"),
        ('[roles]\nadmin = "a"', "2: roles.admin: unknown key."),
        ('[approvals]\nchannels = ["sms"]', '2: approvals.channels[0]: "sms" is not a channel.'),
        ("[approvals]\ntimeout_s = 0", "2: approvals.timeout_s: 0 is too small."),
        ("[approvals]\ntimeout_s = 1e9", "2: approvals.timeout_s: 1000000000.0 is too large."),
        ("[approvals]\ntimeout_s = inf", "2: approvals.timeout_s: inf"),
        ("[approvals]\ndefault_answer = 'allow'", "2: approvals.default_answer: unknown key."),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text, tmp_path)
    assert f"config.toml:{told}" in refused.value.message
