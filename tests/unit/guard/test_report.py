"""What is done about a finding is a setting for each severity, with a safe default (GRD-3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.core.errors import ConfigError
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.guard.report import GuardSettings, Kind, TextTreatment
from cellwall.runtime.guarding import guard_of

KINDS: tuple[Kind, ...] = ("input", "output")
ACTING = (TextTreatment.NEUTRALISE, TextTreatment.ASK, TextTreatment.BLOCK)


def guard(tmp_path: Path, lines: str = ""):
    config = tmp_path / "c.toml"
    config.write_text(f"[guard]\n{lines}\n")
    environ = {"CELLWALL_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return guard_of(load_settings(file=str(config), profile=None, environ=environ), environ)


def verdict(made, severity, kind: Kind) -> TextTreatment:
    finding = Finding("injection", severity, "an attack", span=(0, 1))
    return made.scanner._build_report(
        [finding], kind, score=0.5, shown=lambda: "x", is_complete=True
    ).verdict


@pytest.mark.requirement("GRD-3")
@pytest.mark.parametrize("kind", KINDS)
def test_by_default_something_is_done_from_medium_on(kind: Kind, tmp_path: Path):
    shipped = guard(tmp_path).settings.treatments(kind)
    assert shipped == GuardSettings().treatments(kind)  # of the file and of the code
    assert {shipped[severity] for severity in ("medium", "high", "critical")} <= set(ACTING)
    assert shipped["critical"] is TextTreatment.BLOCK


@pytest.mark.requirement("GRD-3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("severity", [each for each in SEVERITIES if each != "low"])
def test_the_setting_of_a_severity_decides_and_cannot_do_nothing(
    kind: Kind, severity: str, tmp_path: Path
):
    for chosen in ACTING:
        made = guard(tmp_path, f'{kind}_{severity} = "{chosen.value}"')
        assert verdict(made, severity, kind) is chosen
    for weak in ("allow", "annotate"):
        with pytest.raises(ConfigError):
            guard(tmp_path, f'{kind}_{severity} = "{weak}"')
