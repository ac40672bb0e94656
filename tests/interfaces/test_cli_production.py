"""`cellwall doctor --production`: the production list, read from a real state folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.admin.host_check import examine_production
from cellwall.sandbox.doctor import HostCheck
from interfaces.test_cli_process import in_process

pytestmark = pytest.mark.requirement("SRV-1")


def examined(config: Path) -> dict[str, HostCheck]:
    """Without the trial runs of `doctor`, which have tests of their own."""
    report = examine_production(config=str(config), profile=None, address=None)
    return {check.name: check for check in report.checks}


def test_the_production_list_is_read_from_the_host(state_home, tmp_path: Path):
    config = tmp_path / "cellwall.toml"
    config.write_text('profile = "development"\n[rates]\nactions_per_minute_per_user = 0\n')
    config.chmod(0o600)
    names = ("profile", "backup", "rate limits")
    assert in_process("db", "migrate").returncode == 0
    assert in_process("db", "backup", str(tmp_path / "no-folder" / "b")).returncode == 125
    before = examined(config)
    assert {before[name].status for name in names} == {"missing"}
    assert before["backup"].found == "the audit log has no backup"  # the failed one does not count
    assert "actions_per_minute_per_user" in before["rate limits"].hint
    assert before["package feeds"].found == "npm: none, pypi: none"
    assert before["retention"].status == "weak"

    assert in_process("db", "backup", str(tmp_path / "backup.db")).returncode == 0
    config.write_text("[audit]\nkeep_days = 400\n[retention]\nsession_days = 90\n")
    after = examined(config)
    assert {after[name].status for name in (*names, "retention")} == {"ok"}
    assert after["backup"].found == "the last one is 0 hours old"


def test_doctor_ends_with_a_verdict_and_every_problem_has_a_hint():
    done = in_process("doctor", "--production")
    lines = done.stdout.decode().splitlines()
    problems = sum(line.startswith(("weak ", "MISSING ")) for line in lines)
    assert problems == sum(line.lstrip().startswith("hint: ") for line in lines) > 0
    is_good = lines[-1].startswith("Nothing required for production is missing; ")
    assert (done.returncode, is_good) in {(0, True), (1, False)}
    assert any(line.startswith(("ok      disk: ", "weak    disk: ")) for line in lines)
