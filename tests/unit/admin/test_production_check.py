"""What `doctor --production` says about hosts that we do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cellwall.admin.production_check import ProductionFacts, judge_production
from cellwall.admin.service_check import judge_service
from cellwall.core.limits import GIB, MIB
from unit.admin.test_service_check import GOOD as SERVICE

pytestmark = pytest.mark.requirement("SRV-1")

DAY_S = 86_400.0
GOOD = ProductionFacts(
    profile="production",
    has_proxy=True,
    trusts_proxy=True,
    has_database=True,
    is_sqlite=True,
    backup_age_s=3600.0,
    keep_days=400,
    session_days=90,
    forwards=False,
    alert_receivers=1,
    unlimited_rates=(),
    feed_ages_s={"npm": 60.0, "pypi": 60.0},
    stale_feeds=frozenset(),
    is_clock_synchronised=True,
    clock_behind_s=0.0,
    free_bytes=50 * GIB,
    free_share=0.5,
    free_inodes_share=0.9,
)
FORWARDING = replace(GOOD, forwards=True)


def test_a_good_host_has_no_problem():
    checks = judge_production(FORWARDING)
    assert [check.status for check in checks] == ["ok"] * 9
    assert not any(check.hint for check in checks)


@pytest.mark.parametrize(
    ("change", "name", "status", "hint"),
    [
        ({"profile": "development"}, "profile", "missing", "production"),
        ({"trusts_proxy": False}, "reverse proxy", "weak", "trusted_proxies"),
        ({"backup_age_s": None}, "backup", "missing", "cellwall db backup"),
        ({"backup_age_s": None, "is_sqlite": False}, "backup", "weak", "PostgreSQL"),
        ({"backup_age_s": 3 * DAY_S}, "backup", "weak", "cellwall db backup"),
        ({"backup_age_s": None, "has_database": False}, "backup", "info", ""),
        ({"audit_problem": "altered", "backup_age_s": None}, "backup", "weak", "audit verify"),
        ({"keep_days": None}, "retention", "weak", "Set keep_days in [audit]."),
        ({"session_days": None}, "retention", "weak", "session_days in [retention]"),
        ({"forwards": False}, "audit forwarding", "weak", "forward in [audit]"),
        ({"alert_receivers": 0}, "alerts", "weak", "alerts test"),
        ({"unlimited_rates": ("a_per_minute_b",)}, "rate limits", "missing", "a_per_minute_b"),
        (
            {"stale_feeds": frozenset({"npm"}), "feed_ages_s": {"npm": None, "pypi": 1.0}},
            "package feeds",
            "weak",
            "feed update",
        ),
        ({"is_clock_synchronised": False}, "clock", "weak", "chrony"),
        ({"is_clock_synchronised": None}, "clock", "info", ""),
        ({"clock_behind_s": 3600.0}, "clock", "missing", "chrony"),
        ({"free_bytes": GIB}, "disk", "weak", "Free space"),
        ({"free_share": 0.05}, "disk", "weak", "Free space"),
        ({"free_inodes_share": 0.001}, "disk", "missing", "Free space"),
        ({"free_bytes": 10 * MIB}, "disk", "missing", "Free space"),
    ],
)
def test_a_problem_is_named_with_its_hint(change: dict[str, Any], name, status, hint):
    checks = {check.name: check for check in judge_production(replace(FORWARDING, **change))}
    assert checks[name].status == status
    assert checks[name].required is (status in {"missing", "ok"})
    assert hint in checks[name].hint
    others = {check.status for key, check in checks.items() if key != name}
    assert others == {"ok"}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"euid": 0, "cgroup_way": "v2-root"}, "service account"),
        ({"tls_days_left": None, "allows_no_tls": True}, "TLS"),
    ],
)
def test_what_a_dangerous_option_allows_is_an_error_in_production(change: dict[str, Any], name):
    facts = replace(SERVICE, **change)
    usual = {check.name: check for check in judge_service(facts)}
    strict = {check.name: check for check in judge_service(facts, is_production=True)}
    assert (usual[name].status, strict[name].status) == ("weak", "missing")
    assert strict[name].required
