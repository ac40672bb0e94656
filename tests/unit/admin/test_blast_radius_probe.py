"""Probes confirm what a weaker configuration opens, and contradict what is not true (CFG-3).

tests/interfaces/test_cli_blast_radius.py probes every line of a strict configuration.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from cellwall.admin.blast_radius import (
    Ability,
    BlastRadius,
    ProbeResult,
    ProbeState,
    configured_radius,
)
from cellwall.admin.blast_radius_probe import probe_radius
from cellwall.core.types import Principal
from cellwall.runtime.wiring import open_app

pytestmark = [pytest.mark.slow, pytest.mark.requirement("CFG-3")]

SMALL = """
[limits]
output_bytes = "64k"
open_files = 128
"""
WEAK = """
[workspace]
dangerously_expose_sensitive_names = true
[policy]
dangerously_observe = true
[egress]
allow_domains = ["127.0.0.1:PORT"]
dangerously_allow_addresses = ["127.0.0.0/8"]
"""
LIMITED = """
[egress]
max_upload_bytes = "2m"
max_download_bytes = "2m"
[governor]
max_concurrent = 4
[budgets]
user_runs = 3
user_cpu_s = 100
user_money = 5
prices = { run_code = 0.5 }
[packages]
without_feed = "deny"
without_rule = "ask"
[audit]
keep_days = 9
[retention]
session_days = 9
"""
ON_A_TRIAL_HOST = (
    *("reach.upload", "reach.download", "spend.sandboxes", "reach.package-age"),
    *("reach.packages-without-feed", "reach.packages-without-rule", "reach.combined-flow"),
    *("spend.user-runs", "spend.user-cpu-s", "spend.user-money"),
    *("keep.changes", "keep.sessions", "keep.records", "keep.keys"),
    *("execute.role", "execute.allowed-calls", "execute.restricted-calls"),
)
CONFIRMED, CONTRADICTED = ProbeState.CONFIRMED, ProbeState.CONTRADICTED


def probe(
    folder: Path, config: str, lines: tuple[str, ...], lie: Callable[[Ability], Ability]
) -> dict[str, ProbeResult]:
    """The results for these lines, each changed by `lie`."""
    file = folder / "config.toml"
    file.write_text(config)
    app = open_app(config=str(file))
    try:
        radius = configured_radius(app.settings, environ=os.environ)
        chosen = tuple(lie(each) for each in radius.abilities if each.id in lines)
        assert len(chosen) == len(lines)
        changed = BlastRadius(radius.profile, chosen, ())

        async def run() -> dict[str, ProbeResult]:
            who = Principal("ann", "cli")
            return await probe_radius(app, changed, who=who, on_progress=lambda _: None)

        return anyio.run(run)
    finally:
        app.close()


def opposite(line: Ability) -> Ability:
    return replace(line, is_possible=not line.is_possible)


def other_than(found: dict[str, ProbeResult], state: ProbeState) -> dict[str, ProbeResult]:
    return {name: each for name, each in found.items() if each.state is not state}


def test_a_line_that_says_the_opposite_is_contradicted(tmp_path: Path) -> None:
    lines = (
        *("read.programs", "read.etc", "read.devices", "read.workspace", "read.protected-names"),
        *("read.host-files", "read.environment", "read.processes"),
        *("write.given-directory", "write.read-only-directory", "write.root"),
        *("execute.programs", "execute.root", "execute.kernel", "execute.unmatched-calls"),
        *("reach.private-addresses", "reach.this-machine", "keep.files"),
    )
    assert other_than(probe(tmp_path, SMALL, lines, opposite), CONTRADICTED) == {}


@pytest.mark.parametrize("factor", [0.25, 4])
def test_an_amount_that_is_not_the_limit_is_contradicted(tmp_path: Path, factor: float) -> None:
    def lie(line: Ability) -> Ability:
        assert line.amount is not None
        return replace(line, amount=line.amount * factor)

    found = probe(tmp_path, SMALL, ("spend.output", "spend.open-files"), lie)
    assert other_than(found, CONTRADICTED) == {}


def exaggerate(line: Ability) -> Ability:
    """Twice the amount, another role, or the opposite."""
    match line.id:
        case "execute.role":
            return replace(line, bound="user")
        case "keep.records" | "keep.keys":
            return replace(line, bound="no limit")
        case "execute.allowed-calls" | "execute.restricted-calls":
            return opposite(line)
        case "reach.combined-flow" | "reach.packages-without-feed" | "reach.packages-without-rule":
            assert line.amount is not None
            return replace(line, amount=line.amount + 1)
        case _:
            assert line.amount is not None
            return replace(line, amount=line.amount / 2 if line.amount < 0 else 2 * line.amount)


def test_budgets_and_times_that_are_set_are_tried_on_a_host_of_their_own(tmp_path: Path) -> None:
    lines = tuple(
        each for each in ON_A_TRIAL_HOST if each.startswith(("spend.user", "keep.", "reach.packa"))
    )
    assert other_than(probe(tmp_path, LIMITED, lines, lambda line: line), CONFIRMED) == {}


def test_a_line_that_says_too_much_is_contradicted_on_a_host_of_its_own(tmp_path: Path) -> None:
    found = probe(tmp_path, LIMITED, ON_A_TRIAL_HOST, exaggerate)
    assert other_than(found, CONTRADICTED) == {}


def test_a_share_of_processors_is_measured(tmp_path: Path) -> None:
    """A small one, which also a busy host can exceed."""

    def measure(lie: Callable[[Ability], Ability]) -> dict[str, ProbeResult]:
        found: dict[str, ProbeResult] = {}
        for _ in range(5):  # it is not probed while other work has all processors
            found = probe(tmp_path, "[limits]\ncpus = 0.1\n", ("spend.cpus",), lie)
            if other_than(found, ProbeState.NOT_PROBED):
                break
        return found

    assert other_than(measure(lambda line: line), CONFIRMED) == {}
    assert other_than(measure(lambda line: replace(line, amount=0.03)), CONTRADICTED) == {}


RULES = """
[permissions]
allow = ["Code(python)", "WebFetch(domain:api.example.com)"]
[[rule]]
verdict = "allow"
rule = "Bash(make *)"
match = ["make test"]
[[rule]]
verdict = "deny"
rule = "Bash(make deploy)"
match = ["make deploy"]
"""


def test_rules_questions_and_trusted_domains_are_tried_both_ways(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(RULES)
    rules = f'[policy]\nfiles = ["{tmp_path}/policy.toml"]\n'
    trusts = (
        '[egress]\nunknown = "ask"\n[policy]\ndangerously_trusted_domains = ["*.example.com"]\n'
    )
    judged = ("execute.allowed-calls", "execute.restricted-calls", "reach.rule-hosts")
    asked = ("reach.asked-hosts", "reach.trusted-domains")
    for config, lines in ((rules, judged), (trusts, asked)):
        assert other_than(probe(tmp_path, config, lines, lambda line: line), CONFIRMED) == {}
        assert other_than(probe(tmp_path, config, lines, opposite), CONTRADICTED) == {}


@contextmanager
def server() -> Iterator[int]:
    class Quiet(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found.server_port
        found.shutdown()


def test_what_a_weaker_configuration_opens_is_done_and_the_rest_stays_closed(
    tmp_path: Path,
) -> None:
    opened = ("reach.hosts", "reach.private-addresses", "read.protected-names")
    lines = (*opened, "execute.unmatched-calls", "reach.this-machine")
    with server() as port:
        config = WEAK.replace("PORT", str(port))
        assert other_than(probe(tmp_path, config, lines, lambda line: line), CONFIRMED) == {}
        found = probe(tmp_path, config, (*opened, "execute.unmatched-calls"), opposite)
        assert found["execute.unmatched-calls"].state is ProbeState.NOT_PROBED  # a rule may allow
        assert other_than(found, CONTRADICTED).keys() == {"execute.unmatched-calls"}


def test_a_policy_that_refuses_the_probe_leaves_the_line_unprobed(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\nask = ["Code(python)"]\n')
    config = f'[policy]\nfiles = ["{policy}"]\n'
    found = probe(tmp_path, config, ("read.devices", "spend.output"), lambda line: line)
    assert {each.state for each in found.values()} == {ProbeState.NOT_PROBED}
    assert "the policy does not allow the probe" in found["read.devices"].found
