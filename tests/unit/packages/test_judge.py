"""One way to a verdict, with the shipped names and an imported feed (PKG-1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cellwall.core.packages import InstallRuling
from cellwall.core.verdict import Decision, Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.facts import Project, Release
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem

OLD = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class OneRule:
    """Denies one name."""

    denied: str

    def ruling(self, version):
        if not self.denied:
            return InstallRuling()
        rule = f"Install(pypi:{self.denied}*)"
        return InstallRuling(Decision(Verdict.DENY, rule=rule, reason="not here"))


@pytest.fixture
def judge(tmp_path):
    return PackageJudge(Feed(str(tmp_path)), PackageRules(without_feed=Verdict.ALLOW))


def project(name, ecosystem=Ecosystem.PYPI):
    return Project(ecosystem, name, {"1.0": Release("1.0", OLD)})


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("ecosystem", "name", "verdict", "suggestion"),
    [
        (Ecosystem.PYPI, "requests", Verdict.ALLOW, None),
        (Ecosystem.PYPI, "reqeusts", Verdict.ASK, "requests"),
        (Ecosystem.PYPI, "yaml", Verdict.ASK, "pyyaml"),
        (Ecosystem.PYPI, "cv2", Verdict.ASK, "opencv-python"),
        (Ecosystem.PYPI, "lodash", Verdict.ASK, None),
        (Ecosystem.NPM, "lodash", Verdict.ALLOW, None),
        (Ecosystem.NPM, "loadsh", Verdict.ASK, "lodash"),
        (Ecosystem.PYPI, "zebrafish-atlas-viewer", Verdict.ALLOW, None),
    ],
)
def test_a_name_is_judged_with_the_shipped_lists(judge, ecosystem, name, verdict, suggestion):
    found = judge.judge(ecosystem, name, project(name, ecosystem))
    assert (found.verdict, found.suggestion) == (verdict, suggestion)


def test_a_name_that_the_registry_does_not_have_is_denied(judge):
    found = judge.judge(Ecosystem.PYPI, "huggingface-cli-tools", None)
    assert found.verdict is Verdict.DENY


@pytest.mark.requirement("PKG-2")
def test_the_administrators_rule_decides_first(tmp_path):
    denied = PackageJudge(
        Feed(str(tmp_path)),
        PackageRules(without_feed=Verdict.ALLOW),
        decide=lambda _, name: OneRule("left" if name.startswith("left") else ""),
    )
    found = denied.judge(Ecosystem.PYPI, "left-pad", project("left-pad"))
    assert (found.verdict, found.reasons[0].text) == (Verdict.DENY, "not here")
    assert denied.judge(Ecosystem.PYPI, "requests", project("requests")).verdict is Verdict.ALLOW
