"""The layers policy, guard and packages: a hostile request is judged, and a harmless twin as well.

The verdict of Cellwall itself is the fact: nothing runs. The twin is the control, so that settings
which refuse everything prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cellwall.admin.packages import Ecosystem, verify
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import SEVERITIES, Outcome, Status
from cellwall.core.types import Action, Json, Principal, ToolResult, UseTool
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageVerdict
from cellwall.redteam.attack import Attack, AttackResult, Observation, judge
from cellwall.runtime.home import local_principal

_NO_FEED = "feed"
"""The code of a missing feed: the state folder of a run has none."""
_MIN_SEVERITY = SEVERITIES.index("medium")
# Allows every tool, so that only a denial can stop a call: the built-in ones, and the user's own.
_GENEROUS = """[permissions]
allow = ["Bash", "Read(**)", "Read(//**)", "Write(**)", "Edit(**)", "WebFetch"]
"""
_PROJECT = {
    "README.md": "# Project\n",
    "src/app.py": "print(1)\n",
    "notes.txt": "one\ntwo\n",
    ".env": "TOKEN=secret\n",
    "build/out.o": "",
}


async def run_policy(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Calls of an agent's own tools, as a hook asks for them."""
    project = _make_project(host)
    files = (*host.app.settings.policy.files, host.write_policy("generous.toml", _GENEROUS))
    results = []
    for attack in attacks:
        tool = attack.data.get("tool", "Bash")
        field = attack.data.get("field", "command")
        tried = [
            await _use_tool(host, tool, {field: attack.data[name]}, project, files)
            for name in ("benign", "hostile")
        ]
        results.append(judge(attack, control=tried[0], attempt=tried[1]))
    return results


def _make_project(host: TrialHost) -> str:
    project = host.new_folder("project")
    for name, text in _PROJECT.items():
        path = os.path.join(project, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    return project


async def _use_tool(
    host: TrialHost, tool: str, fields: dict[str, Json], cwd: str, files: tuple[str, ...]
) -> Observation:
    operation = UseTool(tool, fields, cwd)
    action = Action(principal=_agent(), operation=operation, policy=files)
    outcome = await host.app.runtime.perform(action)
    rule = outcome.decision.rule or "default"
    match outcome.status:
        case Status.OK:
            return Observation("through", f"allowed by {rule}")
        case Status.DENIED:
            return Observation("refused", f"denied by {rule}")
        case _:
            return Observation("broken", _error(outcome))


def _agent() -> Principal:
    return local_principal("hook")


def _error(outcome: Outcome) -> str:
    return outcome.error.code if outcome.error is not None else outcome.status.value


async def run_guard(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Texts that a tool brings to a model."""
    results = []
    for attack in attacks:
        control = await _read_text(host, attack.data["benign"])
        attempt = await _read_text(host, attack.data["hostile"])
        results.append(judge(attack, control=control, attempt=attempt))
    return results


async def _read_text(host: TrialHost, text: str) -> Observation:
    operation = ToolResult("WebFetch", {"content": text})
    action = Action(principal=_agent(), operation=operation, audience="model")
    outcome = await host.app.runtime.perform(action)
    if outcome.status is not Status.OK:
        return Observation("broken", _error(outcome))
    found = sorted(
        {
            finding.rule or finding.category
            for finding in outcome.findings
            if SEVERITIES.index(finding.severity) >= _MIN_SEVERITY
        }
    )
    if not found:
        return Observation("through", "the guard reports nothing")
    value = outcome.value
    # Also between the marks of an annotation, where a model still reads it.
    if isinstance(value, dict) and text in str(value.get("content")):
        return Observation("through", f"reported, and left as it was: {', '.join(found)}")
    return Observation("refused", f"reported and changed: {', '.join(found)}")


async def run_packages(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Names of packages, judged by what is known without a registry."""
    results = []
    for attack in attacks:
        ecosystem = Ecosystem(attack.data["ecosystem"])
        control = await _judge_name(host, ecosystem, attack.data["benign"])
        attempt = await _judge_name(host, ecosystem, attack.data["hostile"])
        results.append(judge(attack, control=control, attempt=attempt))
    return results


async def _judge_name(host: TrialHost, ecosystem: Ecosystem, name: str) -> Observation:
    try:
        (found,) = await verify(host.app, ecosystem, [name], is_offline=True)
    except CellwallError as error:
        return Observation("refused", error.code)
    against = _reasons_against(found)
    if against:
        return Observation("refused", ", ".join(against))
    return Observation("through", "nothing is known against the name")


def _reasons_against(found: PackageVerdict) -> list[str]:
    """The codes of what speaks against this name. A missing feed speaks against all of them."""
    return [
        reason.code
        for reason in found.reasons
        if reason.verdict is not Verdict.ALLOW and reason.code != _NO_FEED
    ]
