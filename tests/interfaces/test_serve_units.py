"""The units that `cellwall serve --print-unit` prints, judged by systemd's own tools.

`./dev test --vm` starts the service by them under a real systemd.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import resources

import pytest

from conftest import need
from interfaces.served import Place, new_place

pytestmark = pytest.mark.requirement("SRV-1")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with new_place() as found:
        yield found


@pytest.mark.parametrize(("name", "max_exposure"), [("user", 80), ("system", 40)])
def test_the_printed_unit_is_one_that_systemd_accepts(place, name, max_exposure, tmp_path):
    text = place.done("serve", "--print-unit", name).decode()
    for line in ("Type=notify", "NoNewPrivileges=yes", "Delegate=yes", "UMask=0077"):
        assert f"\n{line}\n" in text
    if shutil.which("systemd-analyze") is None:
        return
    (tmp_path / "cellwall.service").write_text(text)
    (tmp_path / "cellwall.socket").write_bytes(place.done("serve", "--print-unit", "socket"))
    words = [
        "systemd-analyze",
        "verify",
        tmp_path / "cellwall.service",
        tmp_path / "cellwall.socket",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    review = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    done = subprocess.run(
        [*review, f"--threshold={max_exposure}", words[2]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["user", "system"])
def test_the_system_calls_that_a_unit_refuses_are_none_that_cells_need(place, name):
    need(shutil.which("systemd-analyze"), "systemd-analyze (Debian: systemd)")
    text = place.done("serve", "--print-unit", name).decode()
    found = re.search(r"^SystemCallFilter=~(.*)$", text, re.MULTILINE)
    assert found is not None
    words = ["systemd-analyze", "--no-pager", "syscall-filter", *found[1].split()]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    refused = {line.strip() for line in listed.splitlines() if re.match(r"\s+\w+$", line)}
    table = tomllib.loads(
        resources.files("cellwall.sandbox.linux").joinpath("seccomp.toml").read_text()
    )
    allowed = {
        call
        for part in ("allow", "allow_if")
        for rule in table[part]
        for call in rule.get("names", [rule.get("name")])
    }
    assert "ptrace" in refused  # the controls
    assert "openat" in allowed
    assert refused & allowed == set()
    assert "\nRestrictSUIDSGID=" not in text  # it refuses openat2 (FS-1)
