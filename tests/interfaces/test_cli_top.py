"""`cellwall top`: one snapshot for programs, the live view, and questions answered by key."""

# ruff: noqa: F811  # parameters are the imported fixtures

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

import pytest

import cellwall as sdk
from cellwall.admin.event_lines import EventLine
from cellwall.admin.live_view import LiveSnapshot
from cellwall.admin.usage_history import UsageHistory
from cellwall.core.errors import CellwallError
from cellwall.interfaces.cli.now_screen import NowScreen
from cellwall.interfaces.cli.now_view import NowReader, NowView, ShownSandbox, spark
from cellwall.interfaces.cli.top import watch
from interfaces.test_cli_approvals import asking, outcome_of, policy, settings  # noqa: F401  # fixtures
from interfaces.test_cli_process import cellwall, error_code
from terminals import Screen, cellwall_on_terminal

HOSTILE = "[bold red]x[/] \x1b[2J \u202egnp"


def snapshot() -> dict:
    done = cellwall("top", "--once", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def texts_of(screen: NowScreen) -> str:
    names = ("tiles", "sandboxes-text", "latencies-text", "questions-text", "events-text")
    return "\n".join(str(screen.query_one(f"#{name}").render()) for name in names)


def test_without_a_terminal_the_error_names_the_option():
    done = cellwall("top")
    assert (done.returncode, error_code(done)) == (125, "CW-NO-TERMINAL")
    assert b"cellwall top --once" in done.stderr
    done = cellwall("top", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (125, "CW-USAGE")


@pytest.mark.requirement("OBS-1")
def test_a_snapshot_has_sandboxes_with_usage_and_decisions_with_reasons(policy):
    with sdk.Sandbox.create(keep_alive=60) as sandbox:
        sandbox.run_code("x = bytearray(10_000_000)")
        assert cellwall("run", "--policy", policy, "--", "rm", "x").returncode == 125
        found = snapshot()
        live = {each["id"]: each for each in found["sandboxes"]}[sandbox.id]
        assert live["cpu_s"] > 0
        assert found["runs"] >= 1
        denied = [each for each in found["events"] if each["verdict"] == "deny"]
        assert denied[0]["reason"]
        assert found["denied"] >= 1
        shown = cellwall("top", "--once").stdout.decode()
        assert sandbox.id in shown


def test_without_textual_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "cellwall.interfaces.cli.now_screen")
    with NowReader.opened(config=None, profile=None) as reader:
        with pytest.raises(CellwallError) as caught:
            watch(reader)
        assert caught.value.code == "CW-TOP-MISSING"
        assert "cellwall[top]" in caught.value.hint


@pytest.mark.requirement("SRV-5")
def test_sixty_columns_are_enough_and_show_the_times_of_runs():
    live = UsageHistory()
    live.add(0.0, 5 << 20, 1.0)
    live.add(0.5, 6 << 20, 2.0)
    sandbox = ShownSandbox("sbx_" + "0" * 26, "ann", True, 12.0, 0.5, 6 << 20, live)
    bounds = [0] * 13
    bounds[1], bounds[3], bounds[-1] = 40, 10, 1
    row = EventLine(
        seq=1, id="evt_1", at_s=0.0, kind="denial", by="ann", session_id="", action_id="",
        verdict="deny", text=HOSTILE * 20, reason="no rule", rule="",
    )  # fmt: skip
    happened = LiveSnapshot(
        runs=(1,) * 10, refusals=(2,), latencies=tuple(bounds), limits=(("wall", 3),),
        rows=(row,), seen=1,
    )  # fmt: skip
    view = NowView(happened, (sandbox,), ())
    lines = [*view.tiles(60).splitlines(), *view.sandbox_lines(60), *view.latency_lines(60)]
    assert max(len(each) for each in lines) <= 60
    assert "runs/s 1.0" in lines[0]
    assert "limits hit wall 3" in "\n".join(lines)
    bars = [(each.split("█")[0].strip(), each.count("█")) for each in view.latency_lines(60)]
    assert bars[0] == ("≤ 10 ms", 38)
    assert bars[2][1] == 10
    assert "longer" in view.latency_lines(60)[-1]
    [(verdict, line)] = view.event_lines(60)
    assert verdict == "deny"
    assert not {"\x1b", "\u202e"} & set(line)
    assert "(no rule)" in line
    assert "ann" not in line
    assert "ann" in view.event_lines(160)[0][1]


def test_bars_grow_with_the_value():
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([]) == ""


@pytest.mark.requirement("OBS-1", "POL-13")
def test_hostile_text_is_escaped_and_an_agents_shell_cannot_allow(
    policy,
    settings,
    monkeypatch: pytest.MonkeyPatch,
):
    async def look() -> tuple[str, list[str]]:
        with NowReader.opened(config=str(settings), profile=None) as reader:
            screen = NowScreen(reader)
            async with screen.run_test(size=(60, 50)) as pilot:
                await screen.poll()
                await pilot.press("j", "k", "a")
                await pilot.pause()
                shown = texts_of(screen)
                return shown, [each.message for each in screen._notifications]

    monkeypatch.setenv("CLAUDECODE", "1")
    with asking(policy, settings, "echo", HOSTILE) as (process, name):
        shown, notices = asyncio.run(look())
        assert name[:12] in shown
        assert "[bold red]x[/]" in shown
        assert not {"\x1b", "\u202e"} & set(shown)
        assert r"\x1b[2J \u202egnp" in shown
        assert any("an agent's shell" in each for each in notices), notices
        assert process.poll() is None  # the question still waits


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(("key", "status"), [("a", "ok"), ("d", "denied")])
def test_a_person_at_a_terminal_answers_by_key(key, status, policy, settings):
    with asking(policy, settings) as (process, name):
        environ = {**os.environ, "TERM": "xterm-256color"}
        environ.pop("COLUMNS", None)  # counts more than the size of the terminal
        with cellwall_on_terminal(
            ["top"], Screen, columns=160, env=environ, on_terminal=True
        ) as screen:
            screen.until(name)
            screen.until(r"\| echo hi")
            screen.type(key)
            if key == "a":
                word = re.search(r"Type (\w+) to do so", screen.until(r"Type \w+ to do so"))
                assert word is not None
                screen.type(f"{word[1]}\n")
            outcome = outcome_of(process)
            screen.type("q")
            screen.look_to_the_end(within_s=60)
            assert screen.process.wait(60) == 0
    assert outcome["status"] == status
