"""Commands that say one thing and do another: none of them is allowed."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from conftest import need

pytestmark = pytest.mark.slow  # there are thousands

DATA = tomllib.loads(Path(__file__).with_name("bypasses.toml").read_text("utf-8"))
ENTRIES: list[dict[str, Any]] = [entry for family in DATA["bypasses"].values() for entry in family]
SMALL = DATA["policies"]

# What data cannot show well: only its size or depth is what might let it through.
LARGE = {
    "after-many-arguments": "ls " + "a " * 20_000 + "; id",
    "after-many-commands": "ls; " * 2_000 + "id",
    "after-many-lines": "ls\n" * 2_000 + "id",
    "in-many-substitutions": "echo " + "$(echo " * 300 + "$(id)" + ")" * 300,
    "in-many-subshells": "( " * 500 + "id" + " )" * 500,
    "in-many-defaults": "echo " + "${x:-" * 300 + "$(id)" + "}" * 300,
    "behind-many-wrappers": "env " * 500 + "id",
    "in-many-shells": "bash -c " * 50 + "id",
    "in-a-long-word": "echo " + "a" * 100_000 + "$(id)",
    "in-a-long-here-document": "cat <<EOF\n" + "text\n" * 10_000 + "$(id)\nEOF",
    "behind-a-long-comment": "ls #" + " " * 100_000 + "\nid",
    "in-many-braces": "echo " + "{a,b}" * 30 + "; id",
}


@pytest.fixture(scope="module")
def policies(ordinary: Policy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Policy]:
    folder = tmp_path_factory.mktemp("policies")
    loaded = {"ordinary": ordinary}
    for name, small in SMALL.items():
        file = folder / f"{name}.toml"
        rules = [f"{verdict} = {small.get(verdict, [])!r}" for verdict in ("allow", "deny")]
        file.write_text("\n".join(["[permissions]", *rules]))
        loaded[name] = Policy.load(file)
    return loaded


@pytest.mark.requirement("POL-2", "POL-3")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
@pytest.mark.sample(800)
def test_bypass_is_not_allowed(entry, place, policies):
    decision = place.judge(policies[entry.get("policy", "ordinary")], entry["command"])
    assert decision.verdict is not Verdict.ALLOW, f"{entry['reason']}: {entry['command']}"


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize("command", LARGE.values(), ids=LARGE)
@pytest.mark.sample(6)
def test_neither_length_nor_depth_hides_a_command(command, place, policies):
    assert place.judge(policies["ordinary"], command).verdict is not Verdict.ALLOW


@pytest.mark.parametrize("name", SMALL)
def test_each_policy_allows_what_it_is_for(name, place, policies):
    decision = place.judge(policies[name], SMALL[name]["control"])
    assert decision.verdict is Verdict.ALLOW, decision


def test_ordinary_policy_allows_the_harmless_halves_of_the_attacks(place, ordinary):
    harmless = ["ls", "cat README.md", "git status", "find . -name x", "echo id", "awk 1 a.txt"]
    verdicts = {command: place.judge(ordinary, command).verdict for command in harmless}
    assert verdicts == dict.fromkeys(harmless, Verdict.ALLOW)


def test_the_set_is_large_and_every_bypass_has_an_id_of_its_own():
    assert len(ENTRIES) >= 300
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
    assert len({(entry["command"], entry.get("policy")) for entry in ENTRIES}) == len(ENTRIES)
    assert {entry.get("policy", "ordinary") for entry in ENTRIES} == {"ordinary", *SMALL}


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.long)])
def test_every_bypass_is_real_shell_text_unless_it_says_otherwise(step):
    bash = shutil.which("bash")
    need(bash, "bash")
    wrong = []
    for entry in ENTRIES[::step]:
        text = entry["command"].encode() + b"\n"
        done = subprocess.run([bash, "-n"], input=text, capture_output=True, check=False)
        if (done.returncode != 0) is not entry.get("unparsable", False):
            wrong.append((entry["id"], done.stderr))
    assert wrong == []
