"""Parts of Cellwall with a policy of the tests' own, which says what a command asks it to say.

`python hook_double.py supervisor` serves; `python hook_double.py hook …` answers without one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.types import Action, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.hooks import answer, client
from cellwall.interfaces.supervisor import runtime_cache
from cellwall.interfaces.supervisor import server as supervisor
from cellwall.runtime import wiring
from cellwall.runtime.app import App

ASKED: dict[str, Any] = {
    "session_id": "abc",
    "transcript_path": "/t",
    "cwd": "/tmp",
    "permission_mode": "default",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "ls #allow"},
    "tool_use_id": "toolu_1",
}
"""What an agent's host tells a hook."""
_VERDICTS = {"deny": Verdict.DENY, "ask": Verdict.ASK, "allow": Verdict.ALLOW}


class Scripted:
    """`#deny`, `#ask` and `#allow` in a command are obeyed; without one of them it is denied."""

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        if not isinstance(action.operation, UseTool):
            return Decision(Verdict.ALLOW, "double", "not an agent's tool", "test")
        text = str(action.operation.input)
        if "#slow" in text:
            time.sleep(30)
        if "#bug" in text:
            raise RuntimeError("a bug")
        found = [verdict for word, verdict in _VERDICTS.items() if f"#{word}" in text]
        return Decision(max(found, default=Verdict.DENY), "double", "the test says so", "test")


class Redacting:
    """Takes `SECRET` out of what comes back, and finds `VIRUS` severe."""

    def screen(self, action: Action) -> Sequence[Finding]:
        return ()

    def clean(self, action: Action, result: RunResult) -> RunResult:
        findings = [Finding("virus", "high", "a virus")] if "VIRUS" in str(result.value) else []
        return replace(result, value=_redacted(result.value), findings=tuple(findings))

    def redact(self, text: str) -> str:
        return str(_redacted(text))


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return value.replace("SECRET", "[redacted]")
        case dict():
            return {key: _redacted(item) for key, item in value.items()}
        case list():
            return [_redacted(item) for item in value]
        case _:
            return value


def doubled(house: App) -> App:
    """The same house with another judge and another guard in it."""
    runtime = replace(house.runtime, policy=Scripted(), guard=Redacting())
    return replace(house, runtime=runtime)


def open_doubled(*words: Any, **options: Any) -> App:
    return doubled(_open_house(*words, **options))


_open_house = wiring.open_app


def main() -> int:
    if sys.argv[1] == "supervisor":
        runtime_cache.open_app = open_doubled
        return supervisor.main()
    answer.open_app = open_doubled
    client._ANSWER_WITHIN_S = float(os.environ.get("DOUBLE_WITHIN_S", client._ANSWER_WITHIN_S))
    return client.answer(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
