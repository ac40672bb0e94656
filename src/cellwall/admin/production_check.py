"""What a service needs before people depend on it: `doctor --production`.

`gather_production` reads the host, `judge_production` decides; `judge_production` is pure, so that
tests cover hosts that we do not have. Account, TLS, database and port are `service_check`'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cellwall.admin.audit_queries import Query, newest
from cellwall.admin.packages import Ecosystem, feed_state
from cellwall.config.models import Settings
from cellwall.config.server_section import is_loopback
from cellwall.core.errors import CellwallError
from cellwall.core.limits import GIB, MIB
from cellwall.core.outcomes import EventKind
from cellwall.runtime.home import state_home
from cellwall.sandbox.doctor import HostCheck
from cellwall.sandbox.linux._syscalls import is_clock_synchronised

_DAY_S = 86_400.0
_MAX_BACKUP_AGE_DAYS = 2.0
_LITTLE_BYTES, _LITTLE_SHARE = 5 * GIB, 0.10
_NOTHING_BYTES, _NOTHING_SHARE = 256 * MIB, 0.01
_MAX_CLOCK_ERROR_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionFacts:
    """The input of `judge_production`; tests write it by hand."""

    profile: str
    has_proxy: bool
    """Clients use another address than the socket's, so a reverse proxy is in front."""
    trusts_proxy: bool
    has_database: bool
    is_sqlite: bool
    backup_age_s: float | None
    """Since the last backup in the audit log; None: there is none."""
    keep_days: int | None
    session_days: int | None
    forwards: bool
    alert_receivers: int
    unlimited_rates: tuple[str, ...]
    feed_ages_s: Mapping[str, float | None]
    """By registry; None: there is no feed."""
    stale_feeds: frozenset[str]
    is_clock_synchronised: bool | None
    """None: the kernel does not tell."""
    clock_behind_s: float
    """How far the newest audit record is in the future."""
    free_bytes: int
    free_share: float
    free_inodes_share: float
    audit_problem: str = ""
    """Why the audit log could not be read; empty if it could."""


def gather_production(settings: Settings, *, has_database: bool) -> ProductionFacts:
    """Read the facts; writes nothing but the state folder, where there is none yet."""
    home = state_home(os.environ)
    server, feeds = settings.server, {each: feed_state(settings, home, each) for each in Ecosystem}
    disk = os.statvfs(home)
    backup_age_s, behind_s, problem = _read_audit(home)
    return ProductionFacts(
        profile=settings.profile,
        has_proxy=server.public_url.startswith("https:") and is_loopback(server.host),
        trusts_proxy=bool(server.trusted_proxies),
        has_database=has_database,
        is_sqlite=not settings.storage.url,
        backup_age_s=backup_age_s,
        keep_days=settings.audit.keep_days,
        session_days=settings.retention.session_days,
        forwards=settings.audit.forward is not None,
        alert_receivers=len(settings.alerts.receivers),
        unlimited_rates=_unlimited(settings),
        feed_ages_s={each.value: state.age_s for each, state in feeds.items()},
        stale_feeds=frozenset(each.value for each, state in feeds.items() if not state.is_fresh),
        is_clock_synchronised=_ask_clock(),
        clock_behind_s=behind_s,
        free_bytes=disk.f_bavail * disk.f_frsize,
        free_share=disk.f_bavail / max(1, disk.f_blocks),
        # Some file systems have no fixed number of inodes and report 0.
        free_inodes_share=disk.f_favail / disk.f_files if disk.f_files else 1.0,
        audit_problem=problem,
    )


def judge_production(facts: ProductionFacts) -> tuple[HostCheck, ...]:
    """Decide for each line of the list in docs/guides/production.md."""
    return (
        _profile(facts),
        *_proxy(facts),
        _backup(facts),
        _retention(facts),
        *_forwarding(facts),
        _alerts(facts),
        _rates(facts),
        _feeds(facts),
        _clock(facts),
        _disk(facts),
    )


def _profile(facts: ProductionFacts) -> HostCheck:
    name, why = "profile", "the profile development is for a machine without other users"
    if facts.profile != "development":
        return HostCheck(name, "ok", facts.profile, why)
    hint = 'Set profile = "production" or "paranoid" in the configuration file.'
    return HostCheck(name, "missing", facts.profile, why, hint)


def _proxy(facts: ProductionFacts) -> tuple[HostCheck, ...]:
    if not facts.has_proxy:
        return ()
    name, why = "reverse proxy", "limits by address must hold for each client, not for the proxy"
    if facts.trusts_proxy:
        return (HostCheck(name, "ok", "trusted_proxies is set", why),)
    hint = "Name the proxy: trusted_proxies in [server]; examples are in deploy/."
    return (_warn(name, "all clients count as one address", why, hint),)


def _backup(facts: ProductionFacts) -> HostCheck:
    name, why = "backup", "accounts, tokens and budgets are in the database alone"
    hint = (
        "Run `cellwall db backup FILE` every day, from a timer, and copy FILE and the state folder "
        "to another machine."
    )
    if not facts.has_database:
        return HostCheck(name, "info", "there is no database yet", why, required=False)
    if facts.audit_problem:
        return _warn(name, f"unknown: {facts.audit_problem}", why, "Run `cellwall audit verify`.")
    if facts.backup_age_s is None:
        found = "the audit log has no backup"
        if facts.is_sqlite:
            return HostCheck(name, "missing", found, why, hint)
        return _warn(name, found, why, f"{hint} Or back up PostgreSQL with its own tools.")
    days = facts.backup_age_s / _DAY_S
    if days > _MAX_BACKUP_AGE_DAYS:
        return _warn(name, f"the last one is {days:.0f} days old", why, hint)
    return HostCheck(name, "ok", f"the last one is {days * 24:.0f} hours old", why)


def _retention(facts: ProductionFacts) -> HostCheck:
    name, why = "retention", "data without an end fills the disk, and laws limit its age"
    unset = [
        key
        for key, value in (
            ("keep_days in [audit]", facts.keep_days),
            ("session_days in [retention]", facts.session_days),
        )
        if value is None
    ]
    if not unset:
        found = f"audit log {facts.keep_days} days, data of sessions {facts.session_days} days"
        return HostCheck(name, "ok", found, why)
    return _warn(name, "some data is kept forever", why, f"Set {' and '.join(unset)}.")


def _forwarding(facts: ProductionFacts) -> tuple[HostCheck, ...]:
    """Only that there is no receiver: the host check has the line of one that is configured."""
    if facts.forwards:
        return ()
    why = "records leave this host before anybody can delete them"
    hint = "Set forward in [audit] to a syslog receiver over TLS; see docs/guides/audit-export.md."
    return (_warn("audit forwarding", "not configured", why, hint),)


def _alerts(facts: ProductionFacts) -> HostCheck:
    name, why = "alerts", "nobody reads a log all day"
    if facts.alert_receivers:
        return HostCheck(name, "ok", f"{facts.alert_receivers} receivers", why)
    hint = "Add a receiver to [alerts.receivers], and try it with `cellwall alerts test`."
    return _warn(name, "no receiver", why, hint)


def _rates(facts: ProductionFacts) -> HostCheck:
    name, why = "rate limits", "one client must not take the service away from all others"
    if not facts.unlimited_rates:
        return HostCheck(name, "ok", "all are on", why)
    hint = f"Set in [rates] a number above 0: {', '.join(facts.unlimited_rates)}."
    return HostCheck(name, "missing", f"{len(facts.unlimited_rates)} are off", why, hint)


def _feeds(facts: ProductionFacts) -> HostCheck:
    name, why = "package feeds", "a malicious package is known by an up-to-date feed alone"
    if not facts.stale_feeds:
        return HostCheck(name, "ok", ", ".join(sorted(facts.feed_ages_s)), why)
    ages = {each: facts.feed_ages_s[each] for each in sorted(facts.stale_feeds)}
    found = ", ".join(
        f"{each}: none" if age is None else f"{each}: {age / _DAY_S:.0f} days old"
        for each, age in ages.items()
    )
    return _warn(name, found, why, "Run `cellwall packages feed update` every day, from a timer.")


def _clock(facts: ProductionFacts) -> HostCheck:
    name, why = "clock", "tokens, records and certificates depend on the time"
    hint = "Run systemd-timesyncd or chrony on the host, and check the time."
    if facts.clock_behind_s > _MAX_CLOCK_ERROR_S:
        found = f"the newest audit record is {facts.clock_behind_s:.0f} s in the future"
        return HostCheck(name, "missing", found, why, hint)
    if facts.is_clock_synchronised is None:
        return HostCheck(name, "info", "the kernel does not tell", why, required=False)
    if not facts.is_clock_synchronised:
        return _warn(name, "not synchronised", why, hint)
    return HostCheck(name, "ok", "synchronised", why)


def _disk(facts: ProductionFacts) -> HostCheck:
    name, why = "disk", "without space no record is written, and every action is refused"
    hint = "Free space on the file system of the state folder, or set CELLWALL_HOME to another one."
    found = f"{facts.free_bytes / GIB:.1f} GiB ({facts.free_share:.0%}) free"
    if facts.free_inodes_share < facts.free_share:
        found += f", {facts.free_inodes_share:.0%} of the inodes"
    share = min(facts.free_share, facts.free_inodes_share)
    if facts.free_bytes < _NOTHING_BYTES or share < _NOTHING_SHARE:
        return HostCheck(name, "missing", found, why, hint)
    if facts.free_bytes < _LITTLE_BYTES or share < _LITTLE_SHARE:
        return _warn(name, found, why, hint)
    return HostCheck(name, "ok", found, why)


def _warn(name: str, found: str, why: str, hint: str) -> HostCheck:
    return HostCheck(name, "weak", found, why, hint, required=False)


def _unlimited(settings: Settings) -> tuple[str, ...]:
    values = settings.rates.model_dump()
    return tuple(name for name, value in values.items() if "_per_minute_" in name and value == 0)


def _read_audit(home: str) -> tuple[float | None, float, str]:
    """Age of the last backup, seconds by which the newest record is ahead, and the problem."""
    now, ahead_s = time.time(), 0.0
    try:
        last = next(newest(Query(), home=home), None)
        ahead_s = 0.0 if last is None else max(0.0, _written_s(last) - now)
        # Strict: a locked vault hides the bodies, and a hidden backup is not a missing one.
        changes = newest(Query(kind=EventKind.DATABASE), home=home, is_strict=True)
        backup = next((each for each in changes if _is_backup(each["body"])), None)
    except CellwallError as error:
        return None, ahead_s, error.message
    return None if backup is None else max(0.0, now - _written_s(backup)), ahead_s, ""


def _is_backup(body: Mapping[str, Any]) -> bool:
    return (body.get("change"), body.get("step"), body.get("status")) == ("backup", "outcome", "ok")


def _written_s(record: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def _ask_clock() -> bool | None:
    """Whether the kernel's clock is synchronised, which the host of a container decides."""
    try:
        return is_clock_synchronised()
    except OSError:  # a container's filter of system calls
        return None
