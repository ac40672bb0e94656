"""What labels of information flow cost an action (POL-9): alone, and in a whole action."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio

from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.labels import MAX_SOURCES, NO_LABELS, LabelsPort
from cellwall.core.types import Action, Principal, RunCode, WorkspaceMode, WorkspaceRequest
from cellwall.runtime.app import App
from cellwall.runtime.wiring import open_app

_WHO = Principal("bench", "sdk")
_AT_ONCE = 200
_DOMAINS = ("api.example.com", "docs.example.com", "*.cdn.example.com")


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    app = open_app()
    try:
        if not quiet:
            print("... labels alone", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="cellwall-bench-project-") as directory:
            figures = _alone(app, directory, rounds)
        if not quiet:
            print("... whole actions", file=sys.stderr)
        return {**figures, **anyio.run(_whole, app, rounds)}
    finally:
        app.close()


def _alone(app: App, directory: str, rounds: int) -> dict[str, float]:
    """Microseconds of judging, committing and ending one action, without the rest of the steps."""
    labels = app.runtime.labels
    request = WorkspaceRequest(WorkspaceMode.READ_WRITE, directory)
    plain = Action(principal=_WHO, operation=RunCode("python", b"1"))
    full = replace(plain, allow_domains=_DOMAINS, secrets=("KEY",), registries=("pypi",))
    figures: dict[str, float] = {}
    for name, action, workspace in (
        ("no_label", plain, WorkspaceRequest()),
        ("all_labels", full, request),
    ):
        with app.session(workspace, _WHO) as session_id:
            wanted = replace(action, session_id=session_id)
            first_s = _timed(lambda wanted=wanted: _pass(labels, wanted), 1)
            again = [
                _timed(lambda wanted=wanted: _pass(labels, wanted), _AT_ONCE) for _ in range(rounds)
            ]
        figures[f"{name}_first_us"] = round(first_s * 1e6, 1)
        figures[f"{name}_us"] = round(statistics.median(again) * 1e6, 2)
    figures["new_source_us"] = round(_new_sources(app, plain) * 1e6, 1)
    return figures


def _new_sources(app: App, plain: Action) -> float:
    """Of an action that brings one more source, which is written to disk before it runs."""
    with app.session(WorkspaceRequest(), _WHO) as session_id:
        actions = [
            replace(plain, session_id=session_id, registries=(f"registry-{number}",))
            for number in range(MAX_SOURCES)
        ]
        labels = app.runtime.labels
        _pass(labels, replace(plain, session_id=session_id))
        return statistics.median(
            [_timed(lambda each=each: _pass(labels, each), 1) for each in actions]
        )


def _pass(labels: LabelsPort, action: Action) -> None:
    begun = labels.begin(action)
    begun.judge(action)
    begun.commit()
    begun.end(None)


async def _whole(app: App, rounds: int) -> dict[str, float]:
    """A small action through all steps, with labels and without, in turn."""
    without = replace(app.runtime, labels=NO_LABELS)
    taken: dict[str, list[float]] = {"with": [], "without": []}
    with app.session(WorkspaceRequest(), _WHO) as session_id:
        action = Action(
            principal=_WHO, operation=FileOperation("exists", "a"), session_id=session_id
        )
        for _ in range(max(rounds * 5, 100)):
            for name, runtime in (("with", app.runtime), ("without", without)):
                started = time.perf_counter()
                await runtime.perform(replace(action, id=new_id("act")))
                taken[name].append(time.perf_counter() - started)
    own, bare = (statistics.median(taken[name]) for name in ("with", "without"))
    return {
        "file_action_us": round(own * 1e6, 1),
        "file_action_without_labels_us": round(bare * 1e6, 1),
        "file_action_ratio": round(own / bare, 3),
    }


def _timed(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times
