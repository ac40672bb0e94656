"""One line about a record of the audit log, for people: its most informative field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_SUMMARY = 120


def body_summary(body: Mapping[str, Any]) -> str:
    """The most informative field of a record's body."""
    if body.keys() & {"sealed"}:
        words = [str(body[name]) for name in sorted(body) if name != "sealed"]
        return " ".join([f"[{body['sealed']}]", *words])
    if "host" in body and "event" in body:
        return connection_text(body)
    if str(body.get("event", "")).startswith("package-"):
        return package_text(body)
    for key in ("command", "code", "message", "reason", "file", "step", "status", "profile"):
        if body.get(key):
            value = body[key]
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            return text if len(text) <= _MAX_SUMMARY else text[:_MAX_SUMMARY] + "…"
    return ""


def package_text(body: Mapping[str, Any]) -> str:
    """`package-served pypi requests 2.32.3 sha256:…`, or a refusal with its strictest reason."""
    words = [body.get(key) for key in ("event", "ecosystem", "name", "version")]
    words += [f"{key}:{body[key]}" for key in ("sha256", "sha512") if body.get(key)]
    words += [f"({body['verdict']}) {body.get('reason', '')}"] if body.get("verdict") else []
    text = " ".join(str(each) for each in words if each)
    return text if len(text) <= _MAX_SUMMARY else text[:_MAX_SUMMARY] + "…"


def connection_text(body: Mapping[str, Any]) -> str:
    """A connection: `closed example.com:443 (192.0.2.7)`, with the reason of a refusal."""
    addresses = [body["address"]] if body.get("address") else body.get("addresses") or []
    words = [str(body["event"]), f"{body['host']}:{body.get('port', '?')}"]
    words += [f"({', '.join(map(str, addresses))})"] if addresses else []
    words += [str(body[key]) for key in ("code", "reason") if body.get(key)]
    text = " ".join(words)
    return text if len(text) <= _MAX_SUMMARY else text[:_MAX_SUMMARY] + "…"
