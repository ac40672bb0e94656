"""The rules about packages in each open session, and the questions to a person (PKG-2, POL-8).

A package manager waits for the index while a person is asked:

  (1) the rules of the policy files that apply to the action, read again when they change;
  (2) a package that a person has allowed, or refused, in this session: no second question. What the
      inspection of a file asks is a question of its own, by the hash of the file: an answer about
      the package was given before its bytes were read;
  (3) one question at a time and at most MAX_QUESTIONS in a session, on the loop of the action,
      whose interface may have a channel of its own;
  (4) the package manager waits for a bounded time, and a repeated request joins the same question;
  (5) no channel, no answer in time, a session that has ended: refused.

The egress loop serves other connections meanwhile. Only the approval broker makes answers, so code
in a cell can ask for a package, and cannot answer.
"""

# ruff: noqa: PLC0415  # late imports: most runs install no package, and need no policy engine

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio

from cellwall.config.models import Settings
from cellwall.core.approvals import NOBODY, Answer, denial
from cellwall.core.errors import CellwallError
from cellwall.core.network import EgressContext
from cellwall.core.packages import InstallRuling
from cellwall.core.ports import ApproverPort, BrokerPort
from cellwall.core.standing_grants import GrantsPort
from cellwall.core.types import Action
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime import policy_places
from cellwall.runtime.package_judging import rules_about
from cellwall.runtime.questions import make_question

if TYPE_CHECKING:
    from cellwall.packages.evidence import PackageVerdict, Reason
    from cellwall.packages.judge import NameRules, PackageJudge
    from cellwall.packages.names import Ecosystem

MAX_QUESTIONS = 20
"""In one session: a flood of names must not become a flood of questions."""
_WAIT_SHARE = 0.9
"""Of the idle timeout of egress, which would end the connection before the answer."""
_CLIENT_MARGIN_S = 15
_CLIENT_CONNECTIONS = 8
"""To each host; see `MAX_SESSION_WORK`."""
_MAX_CONSENTS = 1000
_END_TIMEOUT_S = 5.0
_EXTENT = "An approval holds for this session, and lifts no denial."
_FILE_EXTENT = "An approval holds for this session and for this very file, and lifts no denial."

_Subject = tuple["Ecosystem", str]
"""A package, a file of it with its hash, or the feed of a registry, which has no name."""


@dataclass(frozen=True, slots=True)
class _Approved:
    """Implements `NameRules`: the rules about a package that a person has allowed."""

    rules: NameRules
    approved_by: str

    def ruling(self, version: str | None) -> InstallRuling:
        return replace(self.rules.ruling(version), approved_by=self.approved_by)


@dataclass(slots=True)
class _PackageSession:
    """One session: its rules, its answers, and the actions that run in it."""

    named: tuple[str, ...] = ()
    cwd: str = "/"
    """Of the latest action, whose rules count."""
    answers: dict[_Subject, Answer] = field(default_factory=dict)
    waiting: dict[_Subject, Future[Answer]] = field(default_factory=dict)
    askers: dict[str, _PackageAsker] = field(default_factory=dict)
    """By action."""
    count: int = 0


class PackageSessions:
    """Implements `PackagesPort`. `open` runs on the loops of actions, the rest on egress's."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        approvals: BrokerPort,
        grants: GrantsPort | None,
    ) -> None:
        self._grants = grants
        self._policies = settings.policy.files
        self._environ = environ
        self._approvals = approvals
        self._wait_s = min(approvals.timeout_s, settings.egress.idle_timeout_s * _WAIT_SHARE)
        self._sessions: dict[str, _PackageSession] = {}
        self._consents: dict[str, dict[_Subject, Answer]] = {}

    @asynccontextmanager
    async def open(
        self, action: Action, *, near: ApproverPort | None
    ) -> AsyncIterator[Mapping[str, str]]:
        """Questions about packages are asked while this is open. The value: variables for the
        cell, so that package managers wait as long as a person is asked.

        An action with several cells opens it around all of them: answers hold until the end."""
        if not action.registries:
            yield {}
            return
        key = action.session_id or action.id
        named = action.policy or self._policies
        session = self._sessions.setdefault(key, _PackageSession())
        session.named, session.cwd = named, policy_places.project_folder(action)
        session.answers.update(self._consents.pop(action.id, {}))
        if action.id in session.askers:
            yield _client_settings(self._wait_s)
            return
        asker = session.askers[action.id] = _PackageAsker(
            self._approvals, action, near, self._wait_s
        )
        try:
            yield _client_settings(self._wait_s)
        finally:
            del session.askers[action.id]
            if action.session_id is None:
                self._sessions.pop(key, None)
            await asker.end()

    def consent(
        self, action_id: str, ecosystem: Ecosystem, names: Iterable[str], answer: Answer
    ) -> None:
        """A person has allowed these names for the cell of an action: no second question."""
        if len(self._consents) >= _MAX_CONSENTS:  # of actions that ended before they ran
            self._consents.clear()
        self._consents[action_id] = {(ecosystem, name): answer for name in names}

    def end_session(self, session_id: str) -> None:
        """Forget the answers of a session."""
        self._sessions.pop(session_id, None)

    def session_of(
        self, context: EgressContext, ecosystem: Ecosystem, judge: PackageJudge
    ) -> ActionPackages | None:
        """What the registry service needs for one connection; None: the session has ended."""
        session = self._sessions.get(context.session_id or context.action_id)
        if session is None:
            return None
        return ActionPackages(
            session,
            context.action_id,
            ecosystem,
            judge,
            self._environ,
            self._wait_s,
            self._grants,
        )


@dataclass(frozen=True, slots=True)
class ActionPackages:
    """Implements `RegistrySession` for the connections of one action."""

    _session: _PackageSession
    _action_id: str
    _ecosystem: Ecosystem
    _base: PackageJudge
    _environ: Mapping[str, str]
    _wait_s: float
    _grants: GrantsPort | None

    @property
    def judge(self) -> PackageJudge:
        """The judge with the rules and the answers of the session."""
        rules, feed = self._base.rules, self._session.answers.get((self._ecosystem, ""))
        if feed is not None and feed.allows:
            rules = replace(rules, without_feed=Verdict.ALLOW)
        return self._base.under(self._rules_about, rules)

    def _rules_about(self, ecosystem: Ecosystem, name: str) -> NameRules:
        session = self._session
        found = rules_about(
            ecosystem,
            name,
            named=session.named,
            cwd=session.cwd,
            environ=self._environ,
            grants=self._grants,
        )
        answer = session.answers.get((ecosystem, name))
        is_allowed = answer is not None and answer.allows
        return _Approved(found, answer.by.name) if answer and is_allowed else found

    async def ask(self, verdict: PackageVerdict) -> bool | None:
        """Whether a person allows the package, or the missing feed, for this session; None:
        no person could be asked, or none answered in time."""
        asked = [each for each in verdict.reasons if each.verdict is Verdict.ASK]
        about_feed = [each for each in asked if each.code == "feed"]
        about_file = f"{verdict.name} {verdict.artifact}" if verdict.artifact else verdict.name
        subject = self._ecosystem, "" if about_feed else about_file
        question = self._session.waiting.get(subject)
        # Read second: an answer is stored before its question stops waiting.
        if (before := self._session.answers.get(subject)) is not None:  # (2)
            return _as_answer(before)
        question = question or self._start(subject, verdict, about_feed or asked)
        if question is None:
            return None
        try:  # (4)
            answer = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(question)), self._wait_s
            )
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if question.cancelled():  # (5) the action has ended
                return None
            raise
        return _as_answer(answer)

    def _start(
        self, subject: _Subject, verdict: PackageVerdict, reasons: list[Reason]
    ) -> Future[Answer] | None:
        session = self._session
        asker = session.askers.get(self._action_id) or next(iter(session.askers.values()), None)
        if asker is None or session.count >= MAX_QUESTIONS:  # (3), (5)
            return None
        session.count += 1
        question = session.waiting[subject] = asker.start(subject, verdict, reasons)

        def settle(done: Future[Answer]) -> None:
            if not done.cancelled() and done.exception() is None:
                session.answers[subject] = done.result()
            session.waiting.pop(subject, None)

        question.add_done_callback(settle)
        return question


class _PackageAsker:
    """Asks on the loop of one action."""

    def __init__(
        self, approvals: BrokerPort, action: Action, near: ApproverPort | None, timeout_s: float
    ) -> None:
        self._approvals = approvals
        self._action = action
        self._near = near
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_ended = False

    def start(
        self, subject: _Subject, verdict: PackageVerdict, reasons: list[Reason]
    ) -> Future[Answer]:
        """From any thread."""
        return asyncio.run_coroutine_threadsafe(self._ask(subject, verdict, reasons), self._loop)

    async def end(self) -> None:
        """Withdraw the open questions: the caller is gone, which denies."""
        self._is_ended = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(set(self._tasks), timeout=_END_TIMEOUT_S)

    async def _ask(
        self, subject: _Subject, verdict: PackageVerdict, reasons: list[Reason]
    ) -> Answer:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of the loop runs in a task
        self._tasks.add(task)
        try:
            async with self._turn:  # (3)
                if self._is_ended:
                    return denial("the action has ended")
                action, is_ruled = self._action, any(each.code == "rule" for each in reasons)
                question = make_question(
                    principal=action.principal,
                    tool="Install",
                    text=_subject_text(subject),
                    decision=_decision(verdict, reasons),
                    timeout_s=self._timeout_s,
                    details=_details(subject, verdict),
                    action_id=action.id,
                    session_id=action.session_id or "",
                    call_sha256=_sha256(subject, reasons),
                    # No rule answers the inspection of a file.
                    may_be_a_rule=bool(subject[1]) and not is_ruled and not verdict.artifact,
                )
                return await self._approvals.ask(question, near=self._near)
        except CellwallError as error:  # an answer that cannot be logged allows nothing (AUD-1)
            return denial(error.message)
        finally:
            self._tasks.discard(task)


def _as_answer(answer: Answer) -> bool | None:
    return None if answer.by == NOBODY else answer.allows


def _subject_text(subject: _Subject) -> str:
    ecosystem, name = subject
    return f"{ecosystem.value}:{name}" if name else f"packages of {ecosystem.value}, any"


def _decision(verdict: PackageVerdict, reasons: list[Reason]) -> Decision:
    texts = "; ".join(dict.fromkeys(each.text for each in reasons))
    ruled = verdict.ruling.decision
    if ruled is None or not any(each.code == "rule" for each in reasons):
        return Decision(Verdict.ASK, "", texts)
    return Decision(Verdict.ASK, ruled.rule, texts, ruled.source)


def _details(subject: _Subject, verdict: PackageVerdict) -> tuple[str, ...]:
    from cellwall.packages.risk import risk_of

    if not subject[1]:
        return ("An approval holds for this session, for every package of the registry.",)
    instead = (f"Use instead: {verdict.suggestion}",) if verdict.suggestion else ()
    extent = _FILE_EXTENT if verdict.artifact else _EXTENT
    return (risk_of(verdict).line, *instead, extent)


def _sha256(subject: _Subject, reasons: list[Reason]) -> str:
    """The same package for the same reasons is the same call."""
    text = "\n".join((subject[0].value, subject[1], *(each.text for each in reasons)))
    return hashlib.sha256(text.encode()).hexdigest()


def _client_settings(wait_s: float) -> dict[str, str]:
    """pip waits 15 s for an answer of an index, uv 30 s, pnpm 60 s. uv opens up to 50 connections,
    each with a TLS handshake, for as much work as the session may have done at a time."""
    wait_s = int(wait_s) + _CLIENT_MARGIN_S
    return {
        "PIP_DEFAULT_TIMEOUT": f"{wait_s}",
        "UV_HTTP_TIMEOUT": f"{wait_s}",
        "UV_CONCURRENT_DOWNLOADS": f"{_CLIENT_CONNECTIONS}",
        "npm_config_fetch_timeout": f"{wait_s * 1000}",
        "npm_config_maxsockets": f"{_CLIENT_CONNECTIONS}",
    }
