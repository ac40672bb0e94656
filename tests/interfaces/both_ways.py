"""The same run in the supervisor and in the caller's own process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

import cellwall
from cellwall import Execution, Outcome
from cellwall.core.outcomes import Usage
from cellwall.interfaces.supervisor.client import SupervisorConnection
from cellwall.runtime import wiring
from conftest import audit_records

if TYPE_CHECKING:
    from interfaces.conftest import Supervised

_IDS = re.compile(r"\b(act|evt|sbx)_[0-9a-z]{20,32}\b")
# Of the process that starts the shared supervisor, before a test has its own.
CONFIGURED = os.environ.get("XDG_CONFIG_HOME")


@dataclass
class Ways:
    """How the runs of a test were carried out."""

    monkeypatch: pytest.MonkeyPatch
    taken: list[bool] = field(default_factory=list)
    """For each request to the supervisor, whether it took the run."""

    def alone(self, call: Callable[[], Any]) -> Any:
        with self.monkeypatch.context() as entered:
            entered.setenv("CELLWALL_SUPERVISOR", "off")
            return call()


def count_ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    ways, begin = Ways(monkeypatch), SupervisorConnection.begin

    def counted(self: SupervisorConnection, message: Any, data: bytes) -> bool:
        ways.taken.append(begin(self, message, data))
        return ways.taken[-1]

    monkeypatch.setattr(SupervisorConnection, "begin", counted)
    monkeypatch.setattr(wiring, "has_shared", lambda: False)  # as in a fresh process
    return ways


@pytest.fixture
def ways(supervisor: Supervised, monkeypatch: pytest.MonkeyPatch) -> Ways:
    if CONFIGURED is None:
        monkeypatch.delenv("XDG_CONFIG_HOME")
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", CONFIGURED)
    return count_ways(monkeypatch)


@pytest.fixture
def own_ways(own_supervisor: Supervised, monkeypatch: pytest.MonkeyPatch) -> Ways:
    return count_ways(monkeypatch)


def seen(call: Callable[[], Execution]) -> object:
    """The whole outcome, without what is another one each time; or the error."""
    try:
        done = call()
    except cellwall.CellwallError as error:
        return type(error), error.code, error.message, error.hint
    assert isinstance(done.outcome, Outcome)
    ids = {"action_id": "", "audit_id": "", "sandbox_path": "", "usage": Usage()}
    kept = done.outcome.workspace_id is not None
    return replace(done.outcome, **ids, workspace_id="kept" if kept else None)


def records(count: int) -> list[dict[str, Any]]:
    """The last records, without ids, times and digests of them."""
    found = []
    for each in audit_records()[-count:]:
        body = {k: v for k, v in each["body"].items() if k not in {"usage", "sandbox_path"}}
        found.append({**{k: each[k] for k in ("kind", "principal", "interface")}, "body": body})
    return json.loads(_IDS.sub("ID", json.dumps(found)))
