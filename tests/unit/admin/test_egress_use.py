"""Who asked for which host, from records of connections and denials (NET-2)."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.admin.egress_use import use_by_host


def record(kind: str, session: str, **body: Any) -> dict[str, Any]:
    known = {"session_id": session, "principal": "ann", "time": "2026-01-01T00:00:00Z"}
    return {"kind": kind, "body": body, **known}


def refused(host: str, port: int, code: str = "CW-NOT-ALLOWED") -> dict[str, Any]:
    return record("connection", "s1", event="refused", host=host, port=port, code=code, reason="x")


@pytest.mark.requirement("NET-2")
def test_refusals_are_counted_by_host_and_session_with_the_narrowest_domains() -> None:
    found = use_by_host(
        [
            refused("a.example", 8443),
            refused("a.example", 443),
            record("connection", "s2", event="opened", host="a.example"),
            record("connection", "s2", event="closed", host="a.example"),
            record("connection", "s2", event="package-served", host="pypi.org"),
            record("denial", "", url="https://b.example/x", reason="no rule"),
            record("denial", "", domain="c.example", command=["true"]),
            record("denial", "", command=["true"]),
            refused("d.example", 443, "CW-NO-ADDRESS"),
            record("connection", "s1", event="leak-refused", host="", port=0),
        ]
    )
    rows = {use.host: (use.opened, use.refused, use.is_liftable) for use in found}
    assert rows == {
        "a.example": (1, 2, True),
        "b.example": (0, 1, True),
        "c.example": (0, 1, True),
        "d.example": (0, 1, False),
    }
    assert found[0].host == "a.example"
    asked = found[0].sessions["s1"]
    assert asked.domains("a.example") == ("a.example", "a.example:8443")
    assert not found[0].sessions["s2"].is_liftable


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(
    "body", [{"host": 5}, {"host": None}, {"url": "x"}, {"url": ["x"]}, {"domain": {}}, {}]
)
def test_records_that_were_cut_are_left_out(body: dict[str, Any]) -> None:
    for kind in ("connection", "denial"):
        assert use_by_host([record(kind, "s", event="refused", **body)]) == []
