"""What a change of the configuration opens and closes (CFG-3)."""

from __future__ import annotations

import pytest

from cellwall.admin import setting_effects
from cellwall.admin.blast_radius import BlastRadius, compute_blast_radius
from cellwall.admin.radius_changes import RadiusChange, compare, compare_settings
from cellwall.config.load import profile_settings
from cellwall.config.models import PROFILE_NAMES, SECTIONS, Settings
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source
from cellwall.sandbox.linux.visible_host import HostRoot

HOST = HostRoot(("/usr",), (), ("ssl/certs",), None)


def radius(
    rules: tuple[tuple[Verdict, str], ...] = (), **sections: dict[str, object]
) -> BlastRadius:
    source = Source("x.toml", 1)
    policy = Policy(
        [parse_rule(text, verdict=each, source=source, layer=Layer.USER) for each, text in rules]
    )
    return compute_blast_radius(Settings.model_validate(sections), policy, HOST)


def effects(before: BlastRadius, after: BlastRadius) -> set[str]:
    return {each.effect for each in compare(before, after).changes}


@pytest.mark.requirement("CFG-3")
@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("limits", "memory_bytes", "1g"),
        ("limits", "wall_s", 31.0),
        ("sandbox", "extra_read_only_paths", ("/data/models",)),
        ("sandbox", "tmp_bytes", "65m"),
        ("egress", "allow_domains", ("a.example",)),
        ("egress", "dangerously_allow_addresses", ("10.1.2.0/24",)),
        ("packages", "registries", ("pypi",)),
        ("packages", "min_age_days", 6),
        ("policy", "dangerously_trusted_domains", ("wiki.example",)),
        ("packages", "without_feed", "allow"),
        ("workspace", "keep_changes_days", 8),
        *(
            (section, name, True)
            for section, model in SECTIONS.items()
            for name, spec in model.model_fields.items()
            if name.startswith("dangerously_") and spec.annotation is bool
        ),
    ],
)
def test_a_wider_setting_opens_and_the_way_back_closes(
    section: str, name: str, value: object
) -> None:
    narrow, wide = radius(), radius(**{section: {name: value}})
    assert effects(narrow, wide) == {"opens"}
    assert effects(wide, narrow) == {"closes"}
    assert effects(wide, wide) == set()


@pytest.mark.requirement("CFG-3")
def test_one_more_domain_opens_and_is_named() -> None:
    diff = compare(
        radius(egress={"allow_domains": ("a.example",)}),
        radius(egress={"allow_domains": ("a.example", "b.example")}),
    )
    what = "hosts, for every sandbox"
    assert diff.changes == (
        RadiusChange(
            "opens", "reach.hosts", what, "not listed", "b.example", "egress.allow_domains"
        ),
    )
    assert diff.to_text() == f"opens:\n  {what}: not listed -> b.example\n"
    assert diff.opens


ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


@pytest.mark.requirement("CFG-3")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((), ((ALLOW, "Bash(ls)"),), "opens"),
        ((), ((DENY, "Bash(ls)"),), "closes"),
        (((DENY, "Bash(ls)"),), ((ASK, "Bash(ls)"),), "opens"),
        (((ASK, "Bash(ls)"),), ((DENY, "Bash(ls)"),), "closes"),
    ],
)
def test_rules_open_and_close(
    before: tuple[tuple[Verdict, str], ...], after: tuple[tuple[Verdict, str], ...], expected: str
) -> None:
    assert effects(radius(before), radius(after)) == {expected}


@pytest.mark.requirement("CFG-3")
def test_profiles_are_ordered() -> None:
    found = {
        name: compute_blast_radius(profile_settings(name), Policy(), HOST) for name in PROFILE_NAMES
    }
    assert not compare(found["production"], found["paranoid"]).opens
    assert compare(found["production"], found["development"]).opens
    text = compare(found["production"], found["development"]).to_text()
    assert "\n  memory: 512m -> 2g\n" in text


@pytest.mark.requirement("CFG-3")
def test_a_lower_role_closes_and_settings_without_a_line_are_told() -> None:
    assert effects(radius(), radius(roles={"default": "user"})) == {"closes"}
    before, after = Settings(), Settings.model_validate({"server": {"port": 1}})
    diff = compare_settings(before, after, compare(radius(), radius(server={"port": 1})))
    assert [(each.effect, each.what) for each in diff.changes] == [("changes", "server.port")]
    wide = {"limits": {"memory_bytes": "1g"}}
    diff = compare_settings(
        before, Settings.model_validate(wide), compare(radius(), radius(**wide))
    )
    assert [each.effect for each in diff.changes] == ["opens"]  # told once


def test_a_change_that_opens_nothing_for_code_is_only_told() -> None:
    assert effects(radius(), radius(audit={"keep_days": 9})) == {"changes"}
    assert compare(radius(), radius()).to_text() == "Nothing opens or closes.\n"


def settings_effects(before: dict[str, object], after: dict[str, object]) -> list[str]:
    old, new = (Settings.model_validate(each) for each in (before, after))
    lines = compare(radius(**before), radius(**after))  # type: ignore[arg-type]  # sections
    return [each.effect for each in compare_settings(old, new, lines).changes]


@pytest.mark.slow
@pytest.mark.requirement("CFG-3")
@pytest.mark.parametrize(
    ("section", "narrow", "wide"),
    [
        ("roles", {"users": {"bob": "guest"}}, {}),  # who is named no more has the default
        ("roles", {"users": {"bob": "user"}}, {"users": {"bob": "administrator"}}),
        ("roles", {"interfaces": {"hook": "user"}}, {}),
        ("oidc", {}, {"roles": {"staff": "administrator"}}),
        ("approvals", {"channels": ["terminal"]}, {}),
        ("approvals", {"key": "a" * 10}, {}),
        ("guard", {}, {"input_high": "ask"}),
        ("guard", {"denied_code": ["code.*"]}, {}),
        ("guard", {"personal_data": "hide"}, {}),
        ("hook", {"questions": "nobody"}, {}),
        ("mcp", {}, {"gateway": "offer"}),
        ("egress", {"header_rules": ["a.example forbid x-admin"]}, {}),
        ("egress", {"personal_data": "deny"}, {}),
        ("egress", {}, {"max_connections": 257}),
        ("packages", {"denied_licenses": ["AGPL-3.0-only"]}, {}),
        ("workspace", {"extra_protected_names": ["secrets.yml"]}, {}),
        ("budgets", {"team_runs": 5}, {"team_runs": 0}),
        ("sandbox", {"javascript": "deno"}, {}),
    ],
)
def test_a_setting_without_a_line_opens_and_closes_as_well(
    section: str, narrow: dict[str, object], wide: dict[str, object]
) -> None:
    sections = {section: narrow}, {section: wide}
    assert set(settings_effects(*sections)) == {"opens"}
    assert set(settings_effects(*reversed(sections))) == {"closes"}


@pytest.mark.requirement("CFG-3")
def test_another_registry_opens_whichever_it_was() -> None:
    mirror = {"packages": {"pypi_url": "https://mirror.example"}}
    assert settings_effects({}, mirror) == settings_effects(mirror, {}) == ["opens"]


@pytest.mark.requirement("CFG-3")
def test_each_effect_is_that_of_a_setting_without_a_line() -> None:
    known = {
        f"{section}.{key}" for section, model in SECTIONS.items() for key in model.model_fields
    }
    tables = (
        setting_effects.MORE_OPENS,
        setting_effects.FEWER_OPEN,
        setting_effects.BUDGETS,
        setting_effects.OTHER_OPENS,
        setting_effects.ROLES,
        frozenset(setting_effects.WORDS),
    )
    named = [name for table in tables for name in table]
    assert set(named) <= known
    assert len(named) == len(set(named))
    # Not told twice: a line has its own direction.
    assert not {each.setting for each in radius().abilities} & set(named)


def test_many_rules_are_compared_quickly() -> None:
    rules = tuple((ALLOW, f"Bash(tool-{number})") for number in range(3000))
    assert effects(radius(rules), radius(rules[1:])) == {"closes"}
