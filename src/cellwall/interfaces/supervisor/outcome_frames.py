"""Outcomes as frames: streams travel as raw bytes, everything else as JSON.

Light: the client of a single run imports no more than this.
"""

# ruff: noqa: PLC0415  # late imports: only outcomes of live sandboxes have these payloads

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, PackageUse, Status, Usage
from cellwall.core.verdict import Decision, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.core.files import ByteSink
    from cellwall.core.types import Json


def encode_outcome(
    outcome: Outcome, downloaded: bytes | None = None
) -> tuple[dict[str, Json], bytes]:
    """A frame with the whole outcome; `downloaded` is the content of a file for the client."""
    body: dict[str, Json] = {
        **outcome.to_json(),
        "decision": _encode_decision(outcome.decision),
        "error": None if outcome.error is None else _encode_error(outcome.error),
        "usage": asdict(outcome.usage),
        "action_id": outcome.action_id,
        "code_error": outcome.code_error,
        "state": outcome.state,
        "shown": outcome.shown,
        "stdout": len(outcome.stdout_bytes),
        "stderr": len(outcome.stderr_bytes),
    }
    blob = outcome.stdout_bytes + outcome.stderr_bytes
    if downloaded is not None:
        body["downloaded"] = len(downloaded)
        blob += downloaded
    body["payload"], data = _encode_payload(outcome.payload)
    return body, blob + data


def _encode_decision(decision: Decision) -> dict[str, Json]:
    return {
        **decision.to_json(),
        "subject": decision.subject,
        "place": list(decision.place),
        "parts": [_encode_decision(part) for part in decision.parts],
        "stops": decision.stops,
    }


def _encode_error(error: ErrorInfo) -> dict[str, Json]:
    return {**error.to_json(), "kind": error.kind, "retry_after_s": error.retry_after_s}


def _encode_payload(payload: Any) -> tuple[dict[str, Json], bytes]:  # noqa: ANN401  # as in Outcome
    from cellwall.core.files import FileEntry, Transfer
    from cellwall.core.snapshots import WorkspaceSnapshot
    from cellwall.core.types import ProcessInfo

    match payload:
        case bytes():
            return {"of": "bytes"}, payload
        case WorkspaceSnapshot():
            return {"of": "snapshot", "snapshot": payload.to_json()}, b""
        case FileEntry() | ProcessInfo() | Transfer():
            return {"of": type(payload).__name__, **asdict(payload)}, b""
        case tuple():
            items = [_encode_payload(item)[0] for item in payload]
            return {"of": "tuple", "items": items}, b""
        case _:
            return {"of": "plain", "value": payload}, b""


def decode_outcome(body: Mapping[str, Any], blob: bytes, sink: ByteSink | None = None) -> Outcome:
    """The reverse, in the client; a downloaded file goes to `sink`.

    The supervisor is trusted: a wrong form is a bug and raises.
    """
    out, err = blob[: body["stdout"]], blob[body["stdout"] : body["stdout"] + body["stderr"]]
    rest = blob[body["stdout"] + body["stderr"] :]
    if sink is not None and "downloaded" in body:
        sink.write(rest[: body["downloaded"]])
        rest = rest[body["downloaded"] :]
    return Outcome(
        status=Status(body["status"]),
        action_id=body["action_id"],
        decision=_decode_decision(body["decision"]),
        exit_code=body["exit_code"],
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
        stdout_bytes=out,
        stderr_bytes=err,
        truncated=body["truncated"],
        limit=LimitName(body["limit"]) if body["limit"] else None,
        value=body["value"],
        text=body["text"],
        results=tuple(body["results"]),
        code_error=body["code_error"],
        usage=Usage(**body["usage"]),
        findings=tuple(Finding.of(finding) for finding in body["findings"]),
        error=ErrorInfo(**body["error"]) if body["error"] else None,
        audit_id=body["audit_id"],
        workspace_id=body["workspace_id"],
        sandbox_path=body["sandbox_path"],
        state=body["state"],
        payload=_decode_payload(body["payload"], rest),
        shown=body["shown"],
        packages=tuple(PackageUse.of(each) for each in body.get("packages", ())),
    )


def _decode_decision(found: Mapping[str, Any]) -> Decision:
    return Decision(
        Verdict[found["verdict"].upper()],
        found["rule"],
        found["reason"],
        found["source"],
        subject=found["subject"],
        place=tuple(found["place"]),
        parts=tuple(_decode_decision(part) for part in found["parts"]),
        stops=found["stops"],
    )


def _decode_payload(message: Mapping[str, Any], rest: bytes) -> object:
    match message:
        case {"of": "bytes"}:
            return rest
        case {"of": "plain", "value": value}:
            return value
        case {"of": "tuple", "items": items}:
            return tuple(_decode_payload(item, b"") for item in items)
        case {"of": "snapshot", "snapshot": known}:
            from cellwall.core.snapshots import WorkspaceSnapshot

            return WorkspaceSnapshot.of(known)
        case _:
            return _decode_item(message)


def _decode_item(message: Mapping[str, Any]) -> object:
    from cellwall.core.files import FileEntry, Transfer
    from cellwall.core.types import ProcessInfo

    kinds = {kind.__name__: kind for kind in (FileEntry, ProcessInfo, Transfer)}
    fields = {key: value for key, value in message.items() if key != "of"}
    if isinstance(fields.get("command"), list):
        fields["command"] = tuple(fields["command"])
    return kinds[message["of"]](**fields)
