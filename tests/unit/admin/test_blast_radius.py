"""The blast radius follows the configuration (CFG-3)."""

from __future__ import annotations

import json

import pytest

from cellwall.admin.blast_radius import VERBS, blast_radius, compute_blast_radius
from cellwall.admin.radius_probes import radius_probes
from cellwall.admin.radius_trials import TRIED
from cellwall.config.models import SECTIONS, Settings
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Rule, Source
from cellwall.sandbox.linux.visible_host import HostRoot

HOST = HostRoot(("/usr",), (), ("ssl/certs",), None)


def settings(**sections: dict[str, object]) -> Settings:
    return Settings.model_validate(sections)


def bound(given: Settings, what: str, policy: Policy | None = None) -> str:
    radius = compute_blast_radius(given, policy or Policy(), HOST)
    [found] = [each.bound for each in radius.abilities if each.what == what]
    return found


@pytest.mark.requirement("CFG-3")
def test_each_bound_is_that_of_the_setting() -> None:
    assert bound(settings(), "hosts, for every sandbox") == (
        "none: a sandbox has no network interface"
    )
    allowed = settings(egress={"allow_domains": ("api.example",)})
    assert bound(allowed, "hosts, for every sandbox") == "api.example"
    assert bound(settings(limits={"memory_bytes": 64 << 20}), "memory") == "64m"
    assert bound(settings(audit={"keep_days": 9}), "records of what it did") == "9 days"
    shared = settings(sandbox={"extra_read_only_paths": ("/data/models",)})
    assert bound(shared, "directories of the host") == "/data/models"
    assert bound(settings(budgets={"user_runs": 3}), "budget of a user of the service, runs") == (
        "3 runs in 24 h"
    )


@pytest.mark.requirement("CFG-3")
def test_rules_that_people_wrote_are_counted_and_built_in_ones_are_not() -> None:
    def rule(text: str) -> Rule:
        source = Source("x.toml", 1)
        return parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.SESSION)

    assert bound(settings(), "calls that a rule allows") == "none"
    policy = Policy([rule("Bash(ls *)"), rule("Bash(git *)"), rule("WebFetch(domain:a.example)")])
    assert bound(settings(), "calls that a rule allows", policy) == "Bash (2), WebFetch"
    assert (
        bound(settings(), "hosts that a run names and a rule allows", policy) == "domain:a.example"
    )


def switches() -> list[tuple[str, str]]:
    return [
        (section, name)
        for section, model in SECTIONS.items()
        for name, spec in model.model_fields.items()
        if name.startswith("dangerously_") and spec.annotation is bool
    ]


@pytest.mark.requirement("CFG-1", "CFG-3")
def test_whatever_weakens_a_wall_is_marked() -> None:
    strict = compute_blast_radius(settings(), Policy(), HOST)
    assert strict.weakened == ()
    assert not any(each.is_weakened for each in strict.abilities)
    weak = settings(
        sandbox={"dangerously_without_landlock": True},
        workspace={"dangerously_expose_sensitive_names": True},
        policy={"dangerously_observe": True},
        hook={"dangerously_outside": True},
        egress={"dangerously_allow_addresses": ("10.1.2.0/24",)},
    )
    for section, name in switches():
        found = compute_blast_radius(settings(**{section: {name: True}}), Policy(), HOST)
        assert found.weakened == (f"{section}.{name}",)
        assert name in found.to_text()
    radius = compute_blast_radius(weak, Policy(), HOST)
    marked = {each.setting for each in radius.abilities if each.is_weakened}
    assert marked == set(radius.weakened)


WEAK = {
    "sandbox": {
        "dangerously_without_landlock": True,
        "dangerously_without_cgroup": True,
        "extra_read_only_paths": ("/data/models",),
    },
    "workspace": {"dangerously_expose_sensitive_names": True},
    "policy": {
        "dangerously_observe": True,
        "dangerously_without_rule_of_two": True,
        "dangerously_trusted_domains": ("wiki.example",),
    },
    "hook": {"dangerously_outside": True},
    "egress": {"dangerously_allow_addresses": ("10.1.2.0/24",), "allow_domains": ("a.example",)},
    "packages": {"registries": ("pypi",)},
}


def test_the_text_and_the_object_have_every_ability() -> None:
    radius = blast_radius(settings(), Policy())
    text = radius.to_text()
    assert all(f"\n{verb}:" in text for verb in VERBS)
    for each in radius.abilities:
        assert each.what in text
    assert json.loads(json.dumps(radius.to_json()))["profile"] == "production"


@pytest.mark.requirement("CFG-3")
def test_what_is_impossible_is_told_for_each_verb_and_becomes_possible_by_a_setting() -> None:
    def impossible(given: Settings) -> set[str]:
        radius = compute_blast_radius(given, Policy(), HOST)
        return {each.id for each in radius.abilities if not each.is_possible}

    strict, weak = impossible(settings()), impossible(settings(**WEAK))
    assert {each.partition(".")[0] for each in strict} == set(VERBS) - {"spend"}
    assert strict - weak == {
        *("read.protected-names", "execute.unmatched-calls", "execute.restricted-calls"),
        *("reach.hosts", "reach.registries", "reach.private-addresses", "reach.combined-flow"),
    }
    text = compute_blast_radius(settings(), Policy(), HOST).to_text()
    assert "  cannot  other files of the host: homes," in text
    assert "  can     devices: /dev/null," in text


@pytest.mark.requirement("CFG-3", "POL-9")
def test_what_is_only_observed_is_told_as_possible() -> None:
    """Observing lifts the rules and the rule of two, whatever the other settings say."""
    for name in ("execute.restricted-calls", "reach.combined-flow"):
        lines = [
            each
            for policy in ({}, {"dangerously_observe": True})
            for each in compute_blast_radius(settings(policy=policy), Policy(), HOST).abilities
            if each.id == name
        ]
        assert [(each.is_possible, each.is_weakened) for each in lines] == [
            (False, False),
            (True, True),
        ]
        assert lines[1].setting == "policy.dangerously_observe"


@pytest.mark.requirement("CFG-3", "ISO-11")
def test_containers_of_an_engine_get_no_directory() -> None:
    for backend, is_possible in (("native", True), ("container", False), ("gvisor", False)):
        given = settings(sandbox={"backend": backend})
        lines = {each.id: each for each in compute_blast_radius(given, Policy(), HOST).abilities}
        assert lines["write.given-directory"].is_possible == is_possible
        assert ("gives" in lines["read.workspace"].what) == is_possible


@pytest.mark.requirement("CFG-3")
def test_every_line_has_a_probe_or_the_reason_why_there_is_none() -> None:
    probes = radius_probes()
    known = {*probes.programs, *probes.limits, *probes.unprobed, *TRIED}
    # Not in the table: each has a function of its own.
    known |= {"execute.unmatched-calls", "execute.second-user", "keep.unrecorded", "spend.cpus"}
    known |= {f"execute.without-{each}" for each in ("cgroup", "landlock")}
    allow = parse_rule(
        "WebFetch(domain:a.example)",
        verdict=Verdict.ALLOW,
        source=Source("x.toml", 1),
        layer=Layer.SESSION,
    )
    host = HostRoot(("/usr",), (), ("ssl/certs",), "/home/user/python")
    lines = [
        each
        for given in (settings(), settings(**WEAK), settings(egress={"unknown": "ask"}))
        for each in compute_blast_radius(given, Policy([allow]), host).abilities
    ]
    assert {each.id for each in lines} == known
    assert all(each.amount is not None for each in lines if each.id in probes.limits)
    assert (probes.programs.keys() | TRIED) & probes.unprobed.keys() == set()


def test_hostile_names_stay_in_their_line() -> None:
    radius = compute_blast_radius(
        settings(egress={"allow_domains": ("a\n  can     everything\x1b[2J",)}), Policy(), HOST
    )
    assert "\n  can     everything" not in radius.to_text()
    assert "\x1b" not in radius.to_text()
