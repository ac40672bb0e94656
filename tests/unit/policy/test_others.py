"""Secrets of a project and files of other people: denied for every tool alike."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source
from conftest import need

pytestmark = pytest.mark.requirement("POL-4")

CWD, HOME = "/home/me/project", "/home/me"


@cache
def everything() -> Policy:
    rules = [
        parse_rule(text, verdict=Verdict.ALLOW, source=Source("p"), layer=Layer.ADMINISTRATOR)
        for text in ("Bash", "Read", "Write")
    ]
    return Policy.of(rules)


def verdict(call: str, *, cwd: str = CWD, home: str = HOME) -> str:
    return everything().check(call, cwd=cwd, home=home).verdict.word


def calls(path: str) -> list[str]:
    commands = (f"cat {path}", f"cp {path} x", f"echo x > {path}", f"tee {path}", f"head < {path}")
    return [
        *(f"{tool}({path})" for tool in ("Read", "Write", "Edit", "MultiEdit", "NotebookEdit")),
        *(f"Bash({command})" for command in commands),
    ]


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.local",
        ".env.production",
        ".env.foo",
        "app/.env",
        "../other/.env.dev",
        ".envrc",
    ],
)
def test_env_files_are_denied_for_all_tools(name):
    for call in calls(name):
        assert (call, verdict(call)) == (call, "deny")


@pytest.mark.parametrize("name", [".env.example", "app/.env.sample", ".env.template", "env.py"])
def test_examples_of_env_files_are_not_secrets(name):
    for call in calls(name):
        assert (call, verdict(call)) == (call, "allow")


@pytest.mark.parametrize(
    "command", ["cat .en*", "cat .env*", "cat .??v", "source .env", "cat .e{n,x}v"]
)
def test_env_files_by_another_spelling_are_denied(command):
    assert verdict(f"Bash({command})") == "deny"


@pytest.mark.parametrize("path", ["/home/bob/x", "/root/.profile", "/Users/bob/x", "/home/carol/x"])
def test_homes_of_others_are_denied_for_all_tools(path):
    for call in calls(path):
        assert (call, verdict(call)) == (call, "deny")


def test_ones_own_home_and_the_project_are_not():
    for path in ("/home/me/notes.txt", "/home/me/project/x", "x", "~/notes.txt"):
        assert verdict(f"Read({path})") == "allow"
    # Root, or a team, that works in somebody's folder has chosen to.
    assert verdict("Read(/home/bob/app/x)", cwd="/home/bob/app") == "allow"
    assert verdict("Read(/home/bob/x)", cwd="/home/bob/app") == "deny"
    assert verdict("Read(/root/x)", cwd="/root/app", home="/root") == "allow"


def test_files_of_another_user_in_shared_folders_are_denied(tmp_path: Path):
    need(os.geteuid() == 0, "another user's file can only be made by root")
    place = Path("/tmp") / f"cellwall-others-{os.getpid()}"
    place.mkdir()
    try:
        (place / "x").write_text("")
        for call in calls(f"{place}/x"):
            assert (call, verdict(call)) == (call, "allow")  # the control: one's own
        os.chown(place / "x", 65534, 65534)
        for call in calls(f"{place}/x"):
            assert (call, verdict(call)) == (call, "deny")
        os.chown(place / "x", 0, 0)
        os.chown(place, 65534, 65534)
        for call in (*calls(f"{place}/x"), *calls(f"{place}/new")):
            assert (call, verdict(call)) == (call, "deny")
    finally:
        (place / "x").unlink()
        place.rmdir()
    assert verdict("Read(/tmp/systemd-private-1-x/tmp/y)") == "deny"
    assert verdict("Read(/tmp/not-there-yet)") == "allow"


@pytest.mark.requirement("POL-4", "POL-12")
@pytest.mark.parametrize("path", ["/hom?/bob/x", "/*/bob/x", "/r[o]ot/x", "/home/?ob/x"])
def test_wildcards_find_the_homes_of_others(path: str) -> None:
    assert verdict(f"Bash(cat {path})") == "deny"
    assert verdict("Bash(cat /etc/*.conf /usr/*/x)") == "allow"
