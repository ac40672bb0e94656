"""Which options of a single run can be sent to the supervisor."""

from __future__ import annotations

import json
import os

import pytest

from cellwall.interfaces.sdk.options import OneShot
from cellwall.interfaces.sdk.plain_options import plain_options

PLAIN = {
    "profile": "production",
    "config": "/etc/cellwall.toml",
    "workspace": ".:rw",
    "allow_domains": ("a.example",),
    "envs": {"A": "1"},
    "timeout": 2.5,
    "memory": "64m",
    "limits": {"cpus": 0.5, "processes": 4},
    "template": "python",
    "skills": ["one"],
    "policy": "p.toml",
    "user": "root",
}


def test_plain_options_travel_whole():
    kept = plain_options(PLAIN)
    assert kept == {**PLAIN, "allow_domains": ["a.example"]}
    assert plain_options(json.loads(json.dumps(kept))) == kept
    assert kept.keys() <= OneShot.__annotations__.keys()


def test_none_is_as_left_out():
    names = PLAIN.keys() - {"allow_domains", "skills", "template"}
    assert plain_options(dict.fromkeys(names)) == {}
    assert plain_options({"envs": os.environ}) == {"envs": dict(os.environ)}


@pytest.mark.parametrize(
    "options",
    [
        None,
        [],
        {"memroy": 1},
        {"tools": {}},
        {"stdin": b""},
        {1: 2},
        {"workspace": ""},
        {"config": b"x"},
        {"template": None},
        {"allow_domains": "a.example"},
        {"allow_domains": None},
        {"skills": [1]},
        {"timeout": True},
        {"timeout": "5"},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"memory": 1.5},
        {"memory": True},
        {"memory": 10**400},
        {"limits": {"cpus": "1"}},
        {"limits": {"timeout": 1}},
        {"limits": [("cpus", 1)]},
        {"envs": {"A": 1}},
        {"envs": {1: "A"}},
        {"envs": ["A=1"]},
    ],
    ids=str,
)
def test_everything_else_stays_here(options):
    assert plain_options(options) is None
