"""Only a report that the program sealed after its last attack counts."""

from __future__ import annotations

import json

import pytest

from cellwall.redteam.sealed_report import new_key, read_report, seal_of

KEY = new_key()
WORKS = ["through", "works"]


def sealed(report: object, key: bytes = KEY) -> bytes:
    text = json.dumps(report)
    return json.dumps({"report": text, "seal": seal_of(text, key)}).encode()


@pytest.mark.requirement("RED-1")
def test_a_sealed_report_is_read():
    found = read_report(sealed({"a": ["refused", "EPERM"], "sentinel": WORKS}), KEY)
    assert {name: each.kind for name, each in (found or {}).items()} == {"a": "refused"}


@pytest.mark.requirement("RED-1")
@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"held\n",
        b'{"a": ["refused", "EPERM"]}',
        sealed({"a": ["refused", "EPERM"], "sentinel": WORKS}, new_key()),
        sealed({"a": ["refused", "EPERM"], "sentinel": WORKS}) + sealed({"sentinel": WORKS}),
        b"noise\n" + sealed({"a": ["refused", "EPERM"], "sentinel": WORKS}),
        sealed({"a": ["refused", "EPERM"]}),
        sealed({"a": ["refused", "EPERM"], "sentinel": ["refused", "EPERM"]}),
        sealed(["a"]),
        json.dumps({"report": 1, "seal": 2}).encode(),
        json.dumps({"report": "{}", "seal": "\u00e9"}).encode(),
        b"[" * 100_000,
        b"\xff\xfe",
        b" " * (2 << 20),
    ],
)
def test_anything_else_is_no_report(output):
    assert read_report(output, KEY) is None
