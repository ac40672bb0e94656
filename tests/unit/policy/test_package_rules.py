"""Rules for packages: their grammar, versions, exceptions and days (PKG-2)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.package_rules import InstallRules, judge_install
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import BadRule, Layer
from unit.policy.policies import policy, rule, rules

TODAY = date(2026, 11, 17)
ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


def parse(text, layer=Layer.USER, name="policy.toml"):
    return parse_policy(text, file="p.toml", name=name, layer=layer, folder="/").rules


def ruling(made, ecosystem, name, version=None):
    return InstallRules(made).about(ecosystem, name, today=TODAY).ruling(version)


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("text", "call", "is_hit"),
    [
        ("Install(pypi:Foo_Bar)", "pypi:foo.bar", True),
        ("Install(pypi:foo--bar)", "pypi:FOO-bar", True),
        ("Install(pypi:requests)", "npm:requests", False),
        ("Install(pypi:requests)", "pypi:requests==2.1", True),
        ("Install(pypi:requests==2.*)", "pypi:requests", False),
        ("Install(pypi:requests==2.*)", "pypi:requests==2.31.0", True),
        ("Install(pypi:requests==2.*)", "pypi:requests==20.1", False),
        ("Install(pypi:x>=2, <3)", "pypi:x==3.0rc1", False),
        ("Install(pypi:x>=2,<3)", "pypi:x==2.9rc1", True),
        ("Install(pypi:x~=2.1)", "pypi:x==2.9", True),
        ("Install(npm:@Scope/Pkg)", "npm:@scope/pkg", True),
        ("Install(npm:@scope/*)", "npm:@scope/pkg", True),
        ("Install(npm:@scope/*)", "npm:@scope-of-another/pkg", False),
        ("Install(npm:x==4.*)", "npm:x==4.17.21", True),
        ("Install(npm:x>=4.1)", "npm:x==4.0.9", False),
        ("Install(npm:x<3)", "npm:x==3.0.0-rc.1", False),
        ("Install(npm:x!=1.0.0)", "npm:x==1.0.1", True),
        ("Install(pypi:team-*)", "pypi:team-tool", True),
        ("Install(pypi:*)", "pypi:anything", True),
        ("Install(pypi:*)", "npm:anything", False),
        ("Install(*)", "npm:@any/thing", True),
        ("Install", "npm:anything==1.0.0", True),
    ],
)
def test_a_rule_names_packages_in_any_spelling_of_their_registry(text, call, is_hit):
    for verdict in Verdict:
        found = judge_install(InstallRules([rule(text, verdict)]), call, today=TODAY)
        assert (found.rule != "packages") is is_hit


def test_a_wildcard_allows_within_one_scope_and_denies_in_all():
    wide = "npm:*core*"
    for name, verdict, is_hit in [
        ("@another/core", ALLOW, False),
        ("the-core-js", ALLOW, True),
        ("@another/core", DENY, True),
    ]:
        found = judge_install(
            InstallRules([rule(f"Install({wide})", verdict)]), f"npm:{name}", today=TODAY
        )
        assert (found.rule != "packages") is is_hit


@pytest.mark.parametrize(
    "text",
    [
        "Install(requests)", "Install(pypi)", "Install(pypi:)", "Install(gem:rails)", "Install(pypi:a b)",
        "Install(pypi:@a/b)", "Install(npm:a/b)", "Install(pypi:ä)", "Install(pypi:a==)", "Install(pypi:a>=1.*)",
        "Install(npm:a~=1)", "Install(npm:@scope*)", "Install(npm:a==latest)", "Install(pypi:a==1,,<2)", "Install(pypi:git+https://x)",
        "Install(pypi:../x)", f"Install(pypi:{'a' * 300})", "install(pypi:a)",
    ],
)  # fmt: skip
def test_a_rule_that_names_no_package_is_a_mistake(text):
    with pytest.raises(BadRule):
        rule(text, ALLOW)


@pytest.mark.requirement("PKG-2")
def test_the_strictest_rule_of_all_layers_counts():
    user = rules(allow=["Install(pypi:x)"], layer=Layer.USER)
    administrator = rules(ask=["Install(pypi:*)"], layer=Layer.ADMINISTRATOR)
    denial = rules(deny=["Install(pypi:x==2.*)"], layer=Layer.SESSION)
    assert ruling(user, "pypi", "x").decision.verdict is ALLOW
    assert ruling([*user, *administrator], "pypi", "x").decision.verdict is ASK
    everything = [*user, *administrator, *denial]
    assert ruling(everything, "pypi", "x", "2.1").decision.verdict is DENY
    assert ruling(everything, "pypi", "x", "1.0").decision.verdict is ASK
    assert ruling(user, "pypi", "y").decision is None


@pytest.mark.requirement("PKG-2")
def test_an_untrusted_project_allows_no_package_and_its_denials_count():
    made = [
        replace(each, is_untrusted=True)
        for each in rules(allow=["Install(pypi:x)"], deny=["Install(pypi:y)"])
    ]
    assert ruling(made, "pypi", "x").decision is None
    assert ruling(made, "pypi", "y").decision.verdict is DENY


def test_an_allowed_package_says_nothing_about_other_calls():
    with_package = policy(allow=["Install(pypi:x)"])
    assert with_package.check("Bash(ls)").reason == "no rule allows this"
    both = Policy(
        [
            *rules(allow=["Install(pypi:x)"], layer=Layer.USER),
            *rules(allow=["Bash(ls)"], layer=Layer.SESSION),
        ]
    )
    assert both.check("Bash(ls)").verdict is ALLOW


@pytest.mark.requirement("PKG-2", "POL-1")
def test_a_tool_that_installs_needs_an_allow_where_other_calls_do():
    """A layer that allows some calls denies the rest; one with rules on packages alone does not."""
    name = "Install(pypi:x)"
    assert policy(deny=["Install(pypi:y)"]).check(name).rule == "packages"
    assert policy(allow=["Install(pypi:y)"]).check(name).rule == "packages"
    assert policy(allow=["Bash(ls)"]).check(name).verdict is DENY
    assert policy(allow=["Bash(ls)", "Install(pypi:y)"]).check(name).verdict is DENY
    assert policy(allow=["Bash(ls)", "Install(pypi:x)"]).check(name).verdict is ALLOW
    assert policy(allow=["Bash(ls)", "Install"]).check(name).verdict is ALLOW
    narrow = policy(allow=["Bash(ls)", "Install(pypi:x>=2)"])
    assert narrow.check("Install(pypi:x==2.1)").verdict is ALLOW
    assert narrow.check("Install(pypi:x==1.0)").verdict is DENY
    assert narrow.check(name).verdict is DENY
    administrator = rules(allow=["Bash(ls)"], layer=Layer.ADMINISTRATOR)
    above = Policy([*administrator, *rules(allow=["Bash(ls)", "Install"], layer=Layer.USER)])
    assert above.check(name).verdict is DENY


def test_a_call_that_names_no_package_is_denied():
    for call in ("Install(requests)", "Install(pypi:*)", "Install(pypi:x>=2)", "Install()"):
        assert policy(allow=["Install"]).check(call).verdict is DENY


EXCEPTION = """
[[rule]]
verdict = "allow"
rule = "Install(pypi:hot_fix)"
until = 2026-11-17
lifts = ["age"]
reason = "fixes our outage"
match = ["pypi:hot-fix", "Install(pypi:hot-fix==1.0)"]
not_match = ["pypi:other"]
"""


@pytest.mark.requirement("PKG-2")
def test_an_exception_counts_until_the_end_of_its_last_day():
    book = InstallRules(Policy.of(parse(EXCEPTION)).rules)
    found = book.about("pypi", "hot-fix", today=TODAY).ruling(None)
    assert (found.lifts, found.decision.reason) == (frozenset({"age"}), "fixes our outage")
    assert (found.decision.rule, found.decision.source) == ("Install(pypi:hot-fix)", "p.toml:4")
    tomorrow = date(2026, 11, 18)
    assert book.about("pypi", "hot-fix", today=tomorrow).ruling(None).decision is None
    assert [each.text for each in book.expired(tomorrow)] == ["Install(pypi:hot-fix)"]
    assert book.expired(TODAY) == ()


def test_a_day_is_text_in_json():
    found = parse(
        '{"rule": [{"verdict": "deny", "rule": "Install(pypi:x)", "until": "2026-12-31"}]}',
        name="policy.json",
    )
    assert found[0].until == date(2026, 12, 31)


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("until = 2026-11-17", 'until = "soon"', "this is not a day"),
        ("until = 2026-11-17", "until = 2026-11-17T10:00:00Z", "this is not a day"),
        ("until = 2026-11-17", "until = 2026", "this is not a day"),
        ("until = 2026-11-17", "", "a rule that lifts a limit needs a last day"),
        ('lifts = ["age"]', 'lifts = ["malicious"]', "is no limit that a rule can lift"),
        ('lifts = ["age"]', 'lifts = ["hash"]', "is no limit that a rule can lift"),
        ('verdict = "allow"', 'verdict = "ask"', "only a rule that allows lifts a limit"),
        ("Install(pypi:hot_fix)", "Bash(ls)", "only a rule for packages has this key"),
        ('match = ["pypi:hot-fix"', 'match = ["pypi:other"', "does not match 'pypi:other'"),
    ],
)
def test_a_mistake_in_an_exception_voids_the_file(before, after, problem):
    with pytest.raises(ConfigError) as caught:
        Policy.of(parse(EXCEPTION.replace(before, after)))
    assert problem in caught.value.message


@pytest.mark.requirement("PKG-2")
def test_a_project_cannot_lift_a_limit():
    with pytest.raises(ConfigError) as caught:
        parse(EXCEPTION, Layer.PROJECT)
    assert "a project's rule cannot lift a limit" in caught.value.message
