"""What a role permits beside actions: changes of the rules, the skills and the host's files."""

from __future__ import annotations

from cellwall.accounts.roles import Roles
from cellwall.config.models import Settings
from cellwall.core.roles import Permission
from cellwall.core.types import Principal


def roles_of(settings: Settings) -> Roles:
    """Who may do what, as configured."""
    roles = settings.roles
    return Roles(roles.default, roles.users, roles.interfaces)


def require(settings: Settings, who: Principal, permission: Permission) -> None:
    """Raises `Denied` unless the role of whoever asks permits it."""
    roles_of(settings).require(who, permission)
