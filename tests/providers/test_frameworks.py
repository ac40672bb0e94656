"""Integrations with agent frameworks. The frameworks are in no environment of these tests: each has
one of its own, where its conformance suite and an agent with a scripted model run (`--long`)."""

from __future__ import annotations

import re
import tomllib

import pytest

from providers.run import INTEGRATIONS, NAMES, ROOT, SUITES, run_suite

GUIDE = (ROOT / "docs/guides/frameworks.md").read_text("utf-8")
MAX_LINES = 200


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.requirement("INT-2", "INT-3")
@pytest.mark.parametrize("name", NAMES)
def test_the_suite_of_the_framework_passes(name):
    assert run_suite(name, "-q").returncode == 0


@pytest.mark.requirement("INT-2")
@pytest.mark.parametrize("name", NAMES)
def test_an_integration_is_thin_and_has_an_extra_a_suite_and_a_tested_version_in_the_guide(name):
    module = name.replace("-", "_")
    assert len((INTEGRATIONS / f"{module}.py").read_text("utf-8").splitlines()) < MAX_LINES
    assert (SUITES / f"{module}_suite.py").exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    package = re.match(r"[a-z0-9-]+", extras["optional-dependencies"][name][0])[0]
    locked = {
        each["version"]
        for each in tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
        if each["name"] == package
    }
    (row,) = re.findall(rf"^\| (.*?) \| `cellwall\[{name}\]` \|", GUIDE, re.MULTILINE)
    assert row.split()[-1] in locked
