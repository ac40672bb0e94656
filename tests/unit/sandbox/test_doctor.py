"""The host check on hosts we do not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.sandbox.doctor import EngineTrial, HostFacts, TrialRun, gather, judge
from cellwall.sandbox.linux.cgroups import Choice
from cellwall.sandbox.linux.layers import HostLayers
from cellwall.sandbox.namespace_causes import NamespaceFacts
from cellwall.sandbox.protection.placeholders import LeftoverPlaceholders

GOOD = HostFacts(
    kernel="6.1.0-13-amd64",
    machine="x86_64",
    euid=1000,
    layers=HostLayers("/usr/bin/bwrap", 4, Choice("systemd-user", {})),
    bubblewrap_version="bubblewrap 0.8.0",
    cell=True,
    namespaces=NamespaceFacts(),
    seccomp_actions="kill_process kill_thread trap errno user_notif trace log allow",
    languages={"python": True, "shell": True, "javascript": False},
    pressure_known=True,
    weakened=(),
    trials=(TrialRun("trial run", "the proof"),),
)


def missing(facts: HostFacts) -> list[str]:
    return [
        check.name for check in judge(facts).checks if check.required and check.status == "missing"
    ]


@pytest.mark.requirement("ISO-12")
def test_a_good_host_is_usable_even_without_every_language():
    report = judge(GOOD)
    assert (missing(GOOD), report.usable) == ([], True)


@pytest.mark.requirement("ISO-12", "ISO-4")
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"kernel": "5.10.0"}, "kernel"),
        ({"kernel": "weird"}, "kernel"),
        ({"machine": "riscv64"}, "architecture"),
        ({"layers": HostLayers(None, 4, Choice("systemd-user", {}))}, "bubblewrap"),
        ({"cell": False}, "cellwall-cell"),
        ({"namespaces": NamespaceFacts(max_user_namespaces=0)}, "user namespaces"),
        ({"namespaces": NamespaceFacts(userns_clone=0)}, "user namespaces"),
        ({"namespaces": NamespaceFacts(refusal="bwrap: No permissions")}, "user namespaces"),
        (
            {"backend": "gvisor", "engine": EngineTrial("Docker 28", "why", "mend")},
            "backend gvisor",
        ),
        ({"seccomp_actions": "errno allow"}, "seccomp"),
        ({"layers": HostLayers("/usr/bin/bwrap", 0, Choice("systemd-user", {}))}, "Landlock"),
        ({"layers": HostLayers("/usr/bin/bwrap", 4, Choice("none", {}, "why", "hint"))}, "cgroup"),
        ({"trials": (TrialRun("trial run", "the proof", "broke", "fix it"),)}, "trial run"),
    ],
)
def test_each_missing_layer_is_named_with_its_hint(change, name):
    facts = replace(GOOD, **change)
    report = judge(facts)
    assert (missing(facts), report.usable) == ([name], False)
    (check,) = [check for check in report.checks if check.name == name]
    assert check.hint
    assert check.why


@pytest.mark.requirement("CFG-1")
def test_what_was_weakened_is_told_and_no_longer_required():
    layers = HostLayers("/usr/bin/bwrap", 4, Choice("none", {}, "why", "hint"))
    facts = replace(GOOD, layers=layers, weakened=("sandbox.dangerously_without_cgroup",))
    report = judge(facts)
    assert report.usable
    weak = [check.name for check in report.checks if check.status == "weak"]
    assert weak == ["cgroup", "sandbox.dangerously_without_cgroup"]


@pytest.mark.requirement("ISO-12")
def test_backend_with_an_engine_needs_neither_bubblewrap_nor_user_namespaces_of_users():
    layers = HostLayers(None, 4, Choice("none", {}, "why", "hint"))
    refused = NamespaceFacts(refusal="bwrap: No permissions")
    engine = EngineTrial("Docker 28.1")
    facts = replace(GOOD, layers=layers, namespaces=refused, backend="container", engine=engine)
    assert missing(facts) == []
    for backend, lacks in (("container", "DIR:cow"), ("gvisor", "does not name the limit")):
        report = judge(replace(facts, backend=backend))
        (told,) = (each.found for each in report.checks if each.name == f"not in {backend}")
        assert lacks in told
    assert missing(replace(facts, backend="native", engine=None)) == [
        "bubblewrap",
        "user namespaces",
        "cgroup",
    ]


@pytest.mark.requirement("ISO-12")
def test_this_host_is_looked_at_and_the_report_is_plain_data():
    report = judge(gather(weakened=()))
    found = report.to_json()
    assert [check["name"] for check in found["checks"]][:3] == [
        "kernel",
        "architecture",
        "bubblewrap",
    ]


@pytest.mark.parametrize(
    ("found", "status", "hint"),
    [
        ((), "ok", ""),
        ((LeftoverPlaceholders("/a b", (".git",), is_in_use=True),), "info", ""),
        (
            (LeftoverPlaceholders("/a b", (".git", ".x y"), is_in_use=False),),
            "weak",
            "cd '/a b' && rmdir .git '.x y'",
        ),
    ],
)
def test_placeholders_that_stand_are_told_with_what_removes_them(found, status, hint):
    report = judge(replace(GOOD, placeholders=found))
    (check,) = [check for check in report.checks if check.name == "placeholders"]
    assert (check.status, check.hint.partition(": ")[2], report.usable) == (status, hint, True)
