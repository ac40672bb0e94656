"""What `doctor --service` says about hosts that we do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cellwall.admin.service_check import ServiceFacts, judge_service

pytestmark = pytest.mark.requirement("SRV-1")

GOOD = ServiceFacts(
    euid=1000,
    user="cellwall",
    cgroup_way="systemd-user",
    cgroup_problem="",
    delegated=frozenset({"cpu", "io", "memory", "pids"}),
    has_systemd=True,
    lingers=True,
    home_problem="",
    database_problems=(),
    is_exposed=True,
    allows_no_tls=False,
    tls_problem=None,
    tls_days_left=60.0,
    port=8750,
    port_state="free",
)


def test_a_good_host_has_no_problem():
    checks = judge_service(GOOD)
    assert [check.status for check in checks] == ["ok"] * 7
    assert not any(check.hint for check in checks)


@pytest.mark.parametrize(
    ("change", "name", "status", "hint"),
    [
        ({"euid": 0, "cgroup_way": "v2-root"}, "service account", "weak", "ordinary user"),
        ({"delegated": None}, "cgroup delegation", "missing", "enable-linger cellwall"),
        ({"cgroup_way": "none"}, "cgroup delegation", "missing", "enable-linger"),
        ({"delegated": frozenset({"pids"})}, "cgroup delegation", "missing", "Delegate=cpu"),
        ({"lingers": False}, "lingering", "weak", "enable-linger cellwall"),
        ({"home_problem": "not writable"}, "state folder", "missing", "0700"),
        ({"database_problems": ("the file is damaged",)}, "database", "missing", "db check"),
        ({"database_problems": ("there is no database yet",)}, "database", "info", ""),
        ({"tls_days_left": None}, "TLS", "missing", "tls_certificate"),
        ({"tls_days_left": None, "allows_no_tls": True}, "TLS", "weak", "tls_certificate"),
        ({"tls_days_left": None, "is_exposed": False}, "TLS", "ok", ""),
        ({"tls_days_left": -1.0}, "TLS", "missing", "Renew"),
        ({"tls_days_left": 3.0}, "TLS", "weak", "Renew"),
        ({"tls_problem": ("unreadable", "Check tls_key.")}, "TLS", "missing", "Check tls_key."),
        ({"port_state": "another program listens there"}, "port", "missing", "another port"),
        ({"port_state": "ours"}, "port", "ok", ""),
    ],
)
def test_a_problem_is_named_with_its_hint(change: dict[str, Any], name, status, hint):
    checks = {check.name: check for check in judge_service(replace(GOOD, **change))}
    assert checks[name].status == status
    assert hint in checks[name].hint
    others = {check.status for key, check in checks.items() if key != name}
    assert others == {"ok"}


def test_without_systemd_there_is_no_word_of_lingering():
    names = [check.name for check in judge_service(replace(GOOD, has_systemd=False))]
    assert "lingering" not in names
