"""What a change of a setting without a line in the blast radius opens or closes (CFG-3). Pure.

The tables name each such setting by what widens it. A setting in none of them is told as changed:
it concerns the service, the record or the time, and widens nothing for code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from cellwall.config.models import Settings
from cellwall.core.types import GUEST, OWNER, ROLE_NAMES

Effect: TypeAlias = Literal["opens", "closes", "changes"]
SettingEffect: TypeAlias = tuple[Effect, str, str]
"""With the values before and after."""

# Numbers of which more is wider, and lists of which each member widens.
MORE_OPENS = frozenset({
    "approvals.channels",
    "egress.bytes_per_s", "egress.fetch_max_bytes", "egress.max_connections",
    "egress.max_total_connections",
    "governor.max_memory_pressure_percent", "governor.max_promised_memory_bytes",
    "mcp.max_servers_per_user", "mcp.max_sessions", "mcp.max_sessions_per_user",
    "messages.per_minute",
    "packages.max_feed_age_days",
    "rates.actions_per_minute_per_address", "rates.actions_per_minute_per_token",
    "rates.actions_per_minute_per_user",
    "sandbox.max_code_bytes", "sandbox.max_result_bytes", "sandbox.max_stdin_bytes",
    "server.max_kept_bytes_per_user", "server.max_kept_per_user", "server.max_sessions_per_user",
    "skills.trusted_keys",
})  # fmt: skip
# The same for bounds and checks: fewer are wider. A text counts as one member.
FEWER_OPEN = frozenset({
    "approvals.key",
    "budgets.period_hours",
    "egress.header_rules",
    "governor.min_available_memory_bytes",
    "guard.code_patterns", "guard.denied_code", "guard.rule_files", "guard.secret_rule_files",
    "packages.denied_licenses",
    "workspace.blocked_extensions", "workspace.extra_protected_names",
})  # fmt: skip
# Budgets, where 0 is no limit.
BUDGETS = frozenset({
    "budgets.team_cpu_s", "budgets.team_money", "budgets.team_runs", "budgets.team_sent_bytes",
    "budgets.user_sent_bytes",
})  # fmt: skip
# Another server brings other packages or addresses, whatever was there before.
OTHER_OPENS = frozenset({
    "egress.dns_servers",
    "packages.feed_url", "packages.npm_url", "packages.pypi_file_urls", "packages.pypi_url",
})  # fmt: skip
_GUARD = ("block", "ask", "neutralise", "annotate", "allow")
_VERDICTS = ("deny", "ask", "allow")
# Words, the narrowest first.
WORDS: Mapping[str, tuple[str, ...]] = {
    **{
        f"guard.{kind}_{severity}": _GUARD
        for kind in ("input", "output")
        for severity in ("low", "medium", "high", "critical")
    },
    "egress.personal_data": ("deny", "off"),
    "guard.personal_data": ("hide", "keep"),
    "hook.questions": ("nobody", "agent"),
    "mcp.gateway": ("off", "offer"),
    "oidc.new_users": ("refuse", "guest"),
    "packages.unknown_license": _VERDICTS,
    "sandbox.javascript": ("deno", "any"),
}
ROLES = frozenset({"oidc.roles", "roles.interfaces", "roles.users"})
"""Tables of roles. Who is not named has the default role, no bound, or is a guest."""


def effects_of(name: str, before: Settings, after: Settings) -> Iterator[SettingEffect]:
    """All differences of one setting; none if it is equal."""
    old, new = (_value(name, each) for each in (before, after))
    if old == new:
        return
    if name in ROLES:
        yield from _role_effects(name, before, after)
    elif name in MORE_OPENS or name in FEWER_OPEN or name in BUDGETS:
        yield from _ordered(old, new, name)
    elif name in WORDS:
        ranks = [WORDS[name].index(str(each)) for each in (old, new)]
        yield ("opens" if ranks[1] > ranks[0] else "closes"), str(old), str(new)
    elif name in OTHER_OPENS:
        yield "opens", str(old), str(new)
    else:
        yield "changes", "as in A", "as in B; no line tells its effect"


def _value(name: str, settings: Settings) -> object:
    section, _, key = name.partition(".")
    value: object = getattr(getattr(settings, section), key)
    return value


def _ordered(old: object, new: object, name: str) -> Iterator[SettingEffect]:
    more: Effect = "closes" if name in FEWER_OPEN else "opens"
    less: Effect = "opens" if name in FEWER_OPEN else "closes"
    if isinstance(old, tuple | str):
        had, has = _members(old), _members(new)
        yield from ((more, "not listed", each) for each in has if each not in had)
        yield from ((less, each, "not listed") for each in had if each not in has)
        return
    amounts = [_amount(each, name) for each in (old, new)]
    shown = ["no limit" if math.isinf(each) else f"{each:.12g}" for each in amounts]
    yield (more if amounts[1] > amounts[0] else less), shown[0], shown[1]


def _members(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),) if value else ()


def _amount(value: object, name: str) -> float:
    """Left out is no limit, and so is a budget of 0."""
    if not isinstance(value, int | float) or (name in BUDGETS and value == 0):
        return math.inf
    return value


def _role_effects(name: str, before: Settings, after: Settings) -> Iterator[SettingEffect]:
    """By what each name has in the end: a name that is left out may have more than before."""
    tables = [_table(_value(name, each)) for each in (before, after)]
    absent = {
        "roles.users": [each.roles.default for each in (before, after)],
        "roles.interfaces": [OWNER, OWNER],
        "oidc.roles": [GUEST, GUEST],
    }[name]
    for key in sorted(set(tables[0]) | set(tables[1])):
        roles = [table.get(key, other) for table, other in zip(tables, absent, strict=True)]
        ranks = [ROLE_NAMES.index(each) for each in roles]
        if ranks[0] != ranks[1]:
            effect: Effect = "opens" if ranks[1] > ranks[0] else "closes"
            yield effect, f"{key} is {roles[0]}", f"{key} is {roles[1]}"


def _table(value: object) -> Mapping[str, str]:
    return value if isinstance(value, dict) else {}
