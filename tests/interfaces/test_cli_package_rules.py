"""`cellwall packages verify`, and rules for packages at the command line."""

from __future__ import annotations

import json

import pytest

from interfaces.test_cli_process import cellwall

RULES = """
[permissions]
deny = ["Install(pypi:Left_Pad)"]

[[rule]]
verdict = "allow"
rule = "Install(pypi:nunpy)"
until = 2999-12-31

[[rule]]
verdict = "allow"
rule = "Install(pypi:reqeusts)"
until = 2020-01-31
"""


@pytest.fixture
def place(tmp_path):
    """A configuration that names a policy file."""
    policy, config = tmp_path / "policy.toml", tmp_path / "config.toml"
    policy.write_text(RULES)
    config.write_text(f'[policy]\nfiles = ["{policy}"]\n[packages]\nwithout_feed = "allow"\n')
    for path in (policy, config):
        path.chmod(0o600)
    return policy, config


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_verify_shows_rules_reasons_and_risk(place):
    policy, config = place
    names = ("left.pad", "nunpy", "reqeusts", "numpy")
    words = ("packages", "verify", "--offline", "--config", str(config), *names)
    done = cellwall(*words, "--json")
    assert done.returncode == 4
    denied, allowed, asked, plain = json.loads(done.stdout)
    assert [each["verdict"] for each in (denied, allowed, asked, plain)] == [
        *("deny", "allow", "ask", "allow"),
    ]
    assert denied["rule"]["source"] == f"{policy}:3"
    assert allowed["answered"] == ["nunpy is a misspelling of numpy (rank 20)"]
    assert (allowed["score"], asked["suggestion"]) == (5, "requests")
    assert asked["risk"] == "risk 5 of 10: feed missing or old, resembles requests"
    assert plain["rule"] is None
    assert {"name", "verdict", "reasons", "suggestion"} <= plain.keys()


@pytest.mark.requirement("PKG-2")
def test_a_policy_is_tried_on_packages_and_an_expired_rule_is_named(place):
    policy, _ = place
    calls = ("Install(pypi:left-pad==1.0)", "Install(pypi:reqeusts)")
    done = cellwall("policy", "check", "--policy", str(policy), "--json", *calls)
    assert done.returncode == 4
    assert [each["rule"] for each in json.loads(done.stdout)] == [
        "Install(pypi:left-pad)",
        "packages",
    ]
    text = f"the rule Install(pypi:reqeusts) ({policy}:12) counted until 2020-01-31"
    assert text in done.stderr if isinstance(done.stderr, str) else text.encode() in done.stderr
