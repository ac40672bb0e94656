"""The container file: what it copies exists, and nothing in it runs as root (SRV-1)."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.sandbox.doctor import judge
from cellwall.sandbox.namespace_causes import NamespaceFacts
from unit.sandbox.test_doctor import GOOD

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "container" / "Containerfile"
pytestmark = pytest.mark.requirement("SRV-1")


def instructions() -> list[list[str]]:
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=False) for line in lines if line.strip()]


def test_what_is_copied_is_in_the_repository() -> None:
    copied = [words[1:-1] for words in instructions() if words[0] == "COPY"]
    sources = [name for names in copied if not names[0].startswith("--from=") for name in names]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []


def test_the_service_runs_as_an_ordinary_user_with_its_state_on_a_volume() -> None:
    last = {words[0]: words[1:] for words in instructions()}  # the last one of each kind counts
    assert last["USER"] == ["1000"]
    assert last["VOLUME"] == ["/state"]
    assert (last["ENTRYPOINT"], last["CMD"]) == (["[cellwall]"], ["[serve]"])
    kinds = [words[0] for words in instructions()]
    assert "RUN" not in kinds[kinds.index("USER") :]


def test_the_configuration_of_the_image_is_valid() -> None:
    file = FILE.with_name("config.toml")
    examples = re.findall(r"^#   (.*)$", file.read_text(), flags=re.MULTILINE)
    assert load_settings(file=str(file), profile=None, environ={})
    assert "dangerously_without_cgroup = true" in examples


def test_doctor_names_the_options_that_the_guide_names() -> None:
    guide = (ROOT / "docs" / "guides" / "hosts.md").read_text()
    facts = NamespaceFacts(in_container=True, is_filtered=True, refusal="bwrap: No permissions")
    refused = replace(GOOD, namespaces=facts)
    hints = {check.name: check.hint for check in judge(refused).checks}
    options = re.findall(r"--security-opt (\S+)", hints["user namespaces"])
    assert len(options) == 3
    command = next(
        line for line in guide.splitlines() if line.endswith("cellwall doctor --service")
    )
    assert re.findall(r"--security-opt (\S+)", command) == options
