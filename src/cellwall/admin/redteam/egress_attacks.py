"""Attacks on the allowlist of a cell with egress: a program inside, and fetched pages.

The cells have the user's settings, and beside them only what lets an allowed name lead to a server
of this run: its DNS server, and one loopback address.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.cell_programs import describe, facts_for, run_inside
from cellwall.admin.redteam.egress_servers import GOOD, EgressServers
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.outcomes import Status
from cellwall.core.types import Action, FetchUrl
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.outside import run_outside

_PROGRAM = "egress"
_QUESTION = "question-for-a-forbidden-name"
_LEAK = "leak.trap.example"
_LOOPBACK = "127.0.0.0/8"


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """The program outside, as the control, then in a cell whose allowlist it attacks."""
    with EgressServers() as servers:
        facts = facts_for(attacks, **servers.facts, dns=servers.dns_port)
        control = await in_thread(partial(run_outside, _PROGRAM, {**facts, "control": True}))
        servers.contacts.clear()
        servers.asked.clear()
        with _with_egress(host, servers, GOOD) as attacked:
            attempt = await run_inside(attacked, _PROGRAM, facts, allow_domains=servers.rules)
        reached = "trap" in servers.contacts
        was_asked = _LEAK in servers.asked
    results = []
    for attack in attacks:
        seen = attempt.get(attack.key, NOT_TRIED)
        effects = []
        if attack.key == _QUESTION:
            effects = ["the name was asked for outside"] if was_asked else []
        elif reached and not any(each.kind == "through" for each in attempt.values()):
            effects = ["a server that is not allowed was reached"]
        results.append(
            judge(attack, control=control.get(attack.key, NOT_TRIED), attempt=seen, effects=effects)
        )
    return results


async def run_fetches(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Pages whose server sends the fetcher elsewhere; the control allows that as well."""
    results = []
    with EgressServers() as servers:
        port = servers.ports["good"]
        for attack in attacks:
            to = f"{attack.data['to']}:{port}"
            url = f"http://good.example:{port}/to/{to}"
            with _with_egress(host, servers, _LOOPBACK) as allowed:
                control = await _fetch(allowed, url, attack, (*servers.rules, to))
            with _with_egress(host, servers, GOOD) as attacked:
                attempt = await _fetch(attacked, url, attack, servers.rules)
            results.append(judge(attack, control=control, attempt=attempt))
    return results


async def _fetch(host: TrialHost, url: str, attack: Attack, rules: tuple[str, ...]) -> Observation:
    action = Action(
        principal=host.who,
        operation=FetchUrl(url, "raw"),
        allow_domains=rules,
        limits=host.app.limits,
    )
    outcome = await host.app.runtime.perform(action)
    if outcome.status is Status.OK and attack.data["shows"] in str(outcome.value or outcome.text):
        return Observation("through", "the page of the other server was fetched")
    if outcome.status in (Status.DENIED, Status.ERROR):
        return Observation("refused", describe(outcome))
    return Observation("broken", describe(outcome))


def _with_egress(
    host: TrialHost, servers: EgressServers, network: str
) -> AbstractContextManager[TrialHost]:
    """The same host, whose allowed names may lead to this network of the run's own servers."""
    return host.changed(
        egress={
            "dns_servers": (f"127.0.0.1:{servers.dns_port}",),
            "dangerously_allow_addresses": (network,),
        }
    )
