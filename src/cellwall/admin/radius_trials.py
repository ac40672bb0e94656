"""Probes of the blast radius that need a place of their own (CFG-3).

A trial host has the user's settings, rules and walls, and a state folder that is removed. What a
probe changes in the settings stands at the probe: an address of the run's own server, a question
that a stand-in answers instead of a person, no waiting for a slot.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from cellwall.admin.ability import Ability
from cellwall.admin.blast_radius import ProbeResult, ProbeState
from cellwall.admin.radius_budgets import probe_budget
from cellwall.admin.radius_judgements import PolicyTrials
from cellwall.admin.radius_probes import Unprobed, ending, raised_limits, trial_code
from cellwall.admin.radius_retention import RETENTION
from cellwall.admin.redteam.trial_host import TrialHost, trial_of
from cellwall.admin.trial_server import HOST, TrialServer, trial_server
from cellwall.config.models import Settings
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import Busy
from cellwall.core.labels import FlowMode
from cellwall.core.limits import GIB, size_text
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, Json, RunCode, WorkspaceMode, WorkspaceRequest

_MODES: tuple[FlowMode, ...] = ("deny", "ask", "show")
_WORDS = ("deny", "ask", "allow")
_TRANSFER_S = 60.0
_TRANSFER_HEADERS_BYTES = 4096  # of three exchanges, which count as well
"""A part of the amount may be under way, or is spent on headers."""
_MAX_TRANSFER_BYTES = 8 * GIB
_MAX_SANDBOXES = 2000
_CHANNEL = "callback"
_NOTHING = RunCode("python", b"1")


TRIED = frozenset(
    {
        *("execute.role", "execute.allowed-calls", "execute.restricted-calls"),
        *("reach.rule-hosts", "reach.combined-flow", "reach.trusted-domains", "reach.asked-hosts"),
        *("reach.package-age", "reach.packages-without-feed", "reach.packages-without-rule"),
        *("reach.upload", "reach.download"),
        *("spend.sandboxes", "spend.user-runs", "spend.user-cpu-s", "spend.user-money"),
        *RETENTION,
    }
)
"""The lines that these probes try."""


class StandIn:
    """Implements `ApproverPort` for a person, in a trial: counts the questions."""

    name = _CHANNEL

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self.asked = 0

    async def ask(self, question: Question) -> Answer:
        self.asked += 1
        return Answer(kind=self._kind, by=question.principal, via=self.name)


class RadiusTrials:
    """The lines that are tried on a trial host."""

    def __init__(self, host: TrialHost, server: TrialServer, user: Settings, token: str) -> None:
        self._host, self._server, self._user, self._token = host, server, user, token
        policy = PolicyTrials(host, token)
        self._probes: Mapping[str, Callable[[Ability], Awaitable[ProbeResult]]] = {
            "execute.role": policy.probe_role,
            "execute.allowed-calls": policy.probe_allowed,
            "execute.restricted-calls": policy.probe_restricted,
            "reach.rule-hosts": policy.probe_hosts,
            "reach.combined-flow": self._probe_flow,
            "reach.trusted-domains": self._probe_trusted,
            "reach.asked-hosts": self._probe_asked,
            "reach.package-age": self._probe_age,
            "reach.packages-without-feed": self._probe_packages,
            "reach.packages-without-rule": self._probe_packages,
            "reach.upload": self._probe_transfer,
            "reach.download": self._probe_transfer,
            "spend.sandboxes": self._probe_sandboxes,
            "spend.user-runs": self._probe_budget,
            "spend.user-cpu-s": self._probe_budget,
            "spend.user-money": self._probe_budget,
            **dict.fromkeys(RETENTION, self._probe_retention),
        }

    @classmethod
    def open(cls, stack: AsyncExitStack, settings: Settings, token: str) -> Self:
        """On a new trial host, until the stack is closed."""
        server = stack.enter_context(trial_server())
        host = stack.enter_context(_trial(settings, server))
        return cls(host, server, settings, token)

    async def probe(self, line: Ability) -> ProbeResult:
        """The result of one of these lines; raises `Unprobed`."""
        return await self._probes[line.id](line)

    # Information flow

    async def _probe_flow(self, line: Ability) -> ProbeResult:
        """A run with private data, then one with egress, in one conversation."""
        other = f"{self._token}.invalid"
        alone = await self._flow_to(other, "alone", AnswerKind.DENY, reads_private=False)
        if alone != "show":
            raise Unprobed("the control failed: egress without private data was refused as well")
        found = await self._flow_to(other, "flow", AnswerKind.DENY, reads_private=True)
        if found == "ask":
            found = await self._flow_to(other, "yes", AnswerKind.ONCE, reads_private=True)
        told = {
            "deny": "a run with egress after one with private data was denied",
            "ask": "a run with egress after one with private data ran only after a yes",
            "show": "a run with egress after one with private data ran unasked",
        }[found]
        is_right = line.amount == _MODES.index(found) and line.is_possible == (found == "show")
        return _result(told, is_right=is_right)

    async def _probe_trusted(self, line: Ability) -> ProbeResult:
        if await self._flow_to("other.invalid", "t", AnswerKind.DENY, reads_private=True) == "show":
            raise Unprobed("the rule of two is off, so that it trusts every domain")
        wrong = []
        for number, text in enumerate(line.members):
            domain = text.replace("*", "probe", 1)
            found = await self._flow_to(domain, f"t{number}", AnswerKind.DENY, reads_private=True)
            if (found == "show") != line.is_possible:
                wrong.append(f"{domain}: {found}")
        told = "; ".join(wrong) or "egress to each after private data ran unasked, to another not"
        return _result(told, is_right=not wrong)

    async def _flow_to(
        self, domain: str, name: str, answer: AnswerKind, *, reads_private: bool
    ) -> FlowMode:
        person, context = StandIn(answer), f"probe-{name}-{self._token}"
        if reads_private:
            folder = self._host.new_folder("private")
            given = WorkspaceRequest(WorkspaceMode.READ_ONLY, folder)
            _check_ran(await self._perform(_NOTHING, workspace=given, context=context))
        outcome = await self._perform(
            _NOTHING, allow_domains=(domain,), context=context, person=person
        )
        is_done = outcome.status is Status.OK
        if is_done and not person.asked:
            return "show"
        if person.asked and is_done == (answer is not AnswerKind.DENY):
            return "ask"
        if outcome.status is Status.DENIED and not person.asked:
            return "deny"
        raise Unprobed(f"the probe failed: {ending(outcome)}")

    async def _probe_asked(self, line: Ability) -> ProbeResult:
        """The run's own server, which no rule names; a stand-in answers."""
        code = trial_code("reach", {"host": HOST, "port": self._server.port})
        wrong, asked = [], 0
        for answer in (AnswerKind.DENY, AnswerKind.ONCE):
            person = StandIn(answer)
            outcome = await self._perform(code, person=person)
            asked += person.asked
            expected = line.is_possible and answer is AnswerKind.ONCE
            if bool(_value(outcome)) != expected:
                wrong.append(f"after {answer.value}: {'not ' if expected else ''}reached")
        if not asked and not wrong:
            wrong.append("nobody was asked")
        told = (
            "; ".join(wrong) or "a server of this machine was reached after a yes, not after a no"
        )
        return _result(told, is_right=not wrong)

    # Packages

    async def _probe_age(self, line: Ability) -> ProbeResult:
        days, now, name = -line.number, datetime.now(UTC), f"cellwall-probe-age-{self._token}"
        old, young = timedelta(days=days, hours=1), timedelta(days=max(days, 1), hours=-1)
        self._server.publish(name, {"1.0": now - old, "2.0": now - young})
        found = await self._index(name, StandIn(AnswerKind.DENY), _ANY_PACKAGE)
        if "1.0" not in found:
            return _result("a package that is old enough was not offered", is_right=False)
        if days < 1:
            return _result("a package of today was offered", is_right="2.0" in found)
        told = "a version that is an hour too young was {}, one that is old enough was"
        return _result(told.format("offered" if "2.0" in found else "left out"),
                       is_right="2.0" not in found)  # fmt: skip

    async def _probe_packages(self, line: Ability) -> ProbeResult:
        setting = line.setting.rpartition(".")[2]
        name = f"cellwall-probe-{setting.replace('_', '-')}-{self._token}"
        self._server.publish(name, {"1.0": datetime(2020, 1, 1, tzinfo=UTC)})
        if not await self._index(name, StandIn(AnswerKind.DENY), _ANY_PACKAGE):
            raise Unprobed("the control failed: a rule refuses every package")
        own = {**_ANY_PACKAGE, setting: getattr(self._user.packages, setting)}
        refuser, agreer = StandIn(AnswerKind.DENY), StandIn(AnswerKind.ONCE)
        is_free = bool(await self._index(name, refuser, own))
        is_open = is_free or bool(await self._index(name, agreer, own))
        word = "allow" if is_free else "ask" if is_open and agreer.asked else "deny"
        told = {
            "allow": "such a package was offered",
            "ask": "such a package was offered only after a yes",
            "deny": "such a package was not offered",
        }[word]
        is_right = line.amount == _WORDS.index(word) and line.is_possible == (word != "deny")
        return _result(told, is_right=is_right)

    async def _index(
        self, name: str, person: StandIn, packages: Mapping[str, str]
    ) -> tuple[str, ...]:
        """The versions of a package that code in a cell is offered."""
        code = trial_code("index", {"url": f"https://pypi.org/simple/{name}/"})
        with self._host.changed(packages=packages) as host:
            outcome = await self._perform(code, host=host, person=person, registries=("pypi",))
        files = _value(outcome)
        if not isinstance(files, list):
            raise Unprobed(f"the probe failed: {ending(outcome)}")
        return tuple(str(each).split("-")[1] for each in files)

    # Bytes and slots

    async def _probe_transfer(self, line: Ability) -> ProbeResult:
        """Half of the amount, then the rest of it, then as much again: only the last is cut.

        A cut resets the connection and discards what the client had not read yet, so what arrived
        of a transfer that was cut says nothing about the amount.
        """
        amount, name = int(line.number), line.id.rpartition(".")[2]
        if amount > _MAX_TRANSFER_BYTES:
            raise Unprobed(f"{size_text(amount)} take too long, even on this machine")
        before = self._server.received_bytes
        headers = min(max(amount // 64, _TRANSFER_HEADERS_BYTES), amount // 2)
        half = amount // 2
        rest = amount - half - headers
        given: dict[str, Json] = {"port": self._server.port, "sizes": [half, rest, amount]}
        limits = raised_limits(self._host.app.limits, frozenset())
        limits = replace(limits, wall_s=_TRANSFER_S, cpu_s=_TRANSFER_S)
        outcome = await self._perform(
            trial_code(name, given), allow_domains=(self._server.authority,), limits=limits
        )
        if outcome.status is Status.LIMIT:
            raise Unprobed(f"{size_text(amount)} did not pass within {_TRANSFER_S:g} s")
        counts = _value(outcome)
        if not isinstance(counts, list):
            raise Unprobed(f"the probe failed: {ending(outcome)}")
        total = sum(counts)
        if name == "upload":
            total = self._server.received_bytes - before
        if counts[0] < half:
            return _result("half of the amount did not pass", is_right=False)
        if counts[1] < rest:
            told = f"only {size_text(counts[0] + counts[1])} passed"
            return _result(told, is_right=False)
        told = f"{size_text(half + rest)} passed; the next transfer was cut"
        return _result(told, is_right=counts[2] < amount and total <= amount)

    async def _probe_sandboxes(self, line: Ability) -> ProbeResult:
        """The slots of the trial host, which has as many; the user's own are left alone."""
        amount = int(line.number)
        if amount > _MAX_SANDBOXES:
            raise Unprobed(f"{amount} slots are more than a probe takes")
        async with AsyncExitStack() as held:
            for number in range(amount - 1):
                try:
                    await held.enter_async_context(self._host.app.governor.lease(memory_bytes=1))
                except Busy:
                    return _result(f"only {number} slots could be taken", is_right=False)
            last = await self._perform(_NOTHING)
            await held.enter_async_context(self._host.app.governor.lease(memory_bytes=1))
            refused = await self._perform(_NOTHING)
        if last.status is not Status.OK:
            return _result(f"beside {amount - 1} others: {ending(last)}", is_right=False)
        code = refused.error.code if refused.error is not None else refused.status.value
        told = f"a run beside {amount - 1} others ran, one beside {amount} did not ({code})"
        return _result(told, is_right=code == "CW-BUSY")

    async def _probe_budget(self, line: Ability) -> ProbeResult:
        is_limited = line.amount is not None and math.isfinite(line.amount)
        return await probe_budget(self._host, line, is_limited=is_limited)

    async def _probe_retention(self, line: Ability) -> ProbeResult:
        return await RETENTION[line.id](self._host, self._user, line)

    async def _perform(
        self, code: RunCode, *, host: TrialHost | None = None, person: StandIn | None = None,
        **request: Any,  # noqa: ANN401  # fields of an action
    ) -> Outcome:  # fmt: skip
        host = host or self._host
        request.setdefault("limits", raised_limits(host.app.limits, frozenset()))
        action = Action(principal=host.who, operation=code, **request)
        return await host.app.runtime.perform(action, ask=person)


_ANY_PACKAGE = {"without_feed": "allow", "without_rule": "allow", "unknown_license": "allow"}


@contextmanager
def _trial(settings: Settings, server: TrialServer) -> Iterator[TrialHost]:
    addresses = (*settings.egress.dangerously_allow_addresses, f"{HOST}/32")
    with (
        trial_of(settings) as host,
        host.changed(
            approvals={"channels": (_CHANNEL,)},
            governor={"queue_timeout_s": 0.0},
            egress={"dangerously_allow_addresses": addresses},
            packages={"pypi_url": server.url, "pypi_file_urls": ()},
        ) as changed,
    ):
        os.makedirs(changed.app.store.home, mode=0o700, exist_ok=True)
        yield changed


def _result(told: str, *, is_right: bool) -> ProbeResult:
    return ProbeResult(ProbeState.CONFIRMED if is_right else ProbeState.CONTRADICTED, told)


def _value(outcome: Outcome) -> Any:  # noqa: ANN401  # what the program reports
    if outcome.status is not Status.OK:
        raise Unprobed(f"the probe failed: {ending(outcome)}")
    return outcome.value


def _check_ran(outcome: Outcome) -> None:
    if outcome.status is not Status.OK:
        raise Unprobed(f"the probe failed: {ending(outcome)}")
