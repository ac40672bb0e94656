"""Labels of sessions: what each door brings, when a person is asked, and what no trick loses."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.config.models import Settings
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import CalendarEvent, UseAccount
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.labels import RULE_OF_TWO, FlowMode, Label, LabelSet, LabelSource
from cellwall.core.outcomes import Finding, Outcome, Status
from cellwall.core.packages import InstallPackages
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Principal,
    RunCode,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.rule_of_two import object_to
from cellwall.runtime.action_labels import LabelRules
from cellwall.runtime.questions import question_about
from cellwall.runtime.session_labels import ActionLabels, SessionLabels, flow_mode
from cellwall.sandbox.workspace.store import WorkspaceStore

AGENT, PERSON = Principal("ann", "mcp"), Principal("ann", "sdk")
CODE = RunCode("python", b"1")
EVENT = CalendarEvent("Review", "2026-01-09T10:00:00Z", "2026-01-09T11:00:00Z")


async def hold(_: object) -> None: ...


class Labels:
    """The labels of a state folder, and actions on them without the rest of the pipeline."""

    def __init__(self, home: Path, mode: FlowMode = "ask", rules: LabelRules | None = None) -> None:
        self.home = home
        self.store = WorkspaceStore(str(home))
        self.found = SessionLabels(
            str(home),
            find_workspace=self.store.session,
            mode=mode,
            rules=rules or LabelRules(),
        )

    def session(self, directory: Path | None = None, mode: str = "ro") -> str:
        session_id = new_id("sbx")
        request = WorkspaceRequest()
        if directory is not None:
            request = WorkspaceRequest(WorkspaceMode(mode), str(directory))
        self.store.make(session_id, request)
        return session_id

    def judge(self, action: Action) -> tuple[ActionLabels, Decision | None]:
        labels = self.found.begin(action)
        return labels, labels.judge(action)

    def perform(self, action: Action, *, answer: str = "") -> Decision | None:
        """As the pipeline does; `answer` is a person's. The decision that asked, if one did."""
        labels, decision = self.judge(action)
        if decision is None or answer:
            if answer == "session":
                labels.admit_for_session()
            labels.commit()
        labels.end(None)
        return decision


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    return Labels(tmp_path / "home")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def agent(operation: object, session_id: str | None = None, **more: object) -> Action:
    return Action(principal=AGENT, operation=operation, session_id=session_id, **more)  # type: ignore[arg-type]


def widen(session_id: str, *domains: str) -> Action:
    return agent(SetDomains(domains), session_id, allow_domains=domains)


UNTRUSTED = {
    "message": ReceiveMessage("email", "hi", "pair"),
    "package": InstallPackages("pypi", ("tiny",)),
    "registry": (CODE, {"registries": ("pypi",)}),
    "events": UseAccount("work", "list_events"),
    "server": CallServerTool("notes", "read", {}),
}
PRIVATE = {
    "event": UseAccount("work", "create_event", event=EVENT),
    "secret": (CODE, {"secrets": ("KEY",)}),
    "account": UseAccount("home", "list_events"),
}
EGRESS = {
    "reply": SendReply("email", "hi", "pair"),
    "domain": (CODE, {"allow_domains": ("a.example",)}),
    "function": CallTool("send"),
    "page": FetchUrl("https://a.example/"),
}


def through(door: object, session_id: str) -> Action:
    operation, more = door if isinstance(door, tuple) else (door, {})
    if isinstance(operation, CallServerTool):
        return agent(operation, context=session_id)
    return agent(operation, session_id, context=session_id, **more)


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("untrusted", UNTRUSTED)
def test_the_third_label_asks_by_whatever_door_it_comes(labels: Labels, untrusted: str) -> None:
    doors = itertools.product([UNTRUSTED[untrusted]], PRIVATE.values(), EGRESS.values())
    for order in itertools.chain.from_iterable(map(itertools.permutations, doors)):
        session = labels.session()
        seen: set[Label] = set()
        for door in order:
            action = through(door, session)
            brought = labels.found.rules.labels_of(action, directory=None, server=LabelSet())
            seen |= {each.label for each in brought.sources}
            decision = labels.perform(action)
            assert (decision is not None) == (len(seen) == 3)
            if decision is not None:
                assert (decision.verdict, decision.rule) == (Verdict.ASK, RULE_OF_TWO)
                break
        else:
            pytest.fail("the three met without a question")


@pytest.mark.requirement("POL-9")
def test_a_refused_action_brings_nothing_and_a_yes_lets_exactly_that_through(
    labels: Labels, project: Path
) -> None:
    session, other = labels.session(project), labels.session(project)
    assert labels.perform(agent(CODE, session, registries=("pypi",))) is None
    send = agent(CODE, session, allow_domains=("a.example",))
    assert labels.perform(send) is not None
    assert labels.found.of_session(session).labels == {Label.UNTRUSTED, Label.PRIVATE}
    assert labels.perform(send, answer="once") is not None
    assert labels.found.of_session(session).is_complete
    assert labels.perform(send) is not None  # the yes was for one action
    assert labels.perform(agent(CODE, session)) is None  # brings nothing new
    # Another session has its own labels, and the same two pass there.
    assert labels.found.of_session(other).sources == ()
    assert labels.perform(widen(other, "a.example")) is None


@pytest.mark.requirement("POL-9")
def test_a_yes_for_the_session_holds_for_its_sources_and_no_others(
    labels: Labels, project: Path
) -> None:
    session = labels.session(project)
    labels.perform(agent(CODE, session, registries=("pypi",)))
    send = agent(CODE, session, allow_domains=("a.example",))
    assert labels.perform(send, answer="session") is not None
    assert labels.perform(replace(send, id=new_id("act"))) is None
    assert labels.perform(agent(CODE, session, allow_domains=("b.example",))) is not None


@pytest.mark.requirement("POL-9")
def test_two_actions_at_once_that_each_add_one_label_do_not_both_pass(
    labels: Labels, project: Path
) -> None:
    session = labels.session(project)
    labels.perform(agent(CODE, session))
    first = agent(CODE, session, registries=("pypi",))
    second = agent(SendReply("email", "x", "pair"), session)
    one, judged = labels.judge(first)
    assert judged is None
    two, asked = labels.judge(second)
    assert asked is not None  # although the first has not begun
    one.end(None)
    two.end(None)
    assert labels.perform(second) is None  # the first was refused after all

    for _ in range(20):  # on threads, as embedding programs do it
        session, decisions = labels.session(project), []
        labels.perform(agent(CODE, session))
        ready = threading.Barrier(2)

        def act(action: Action, ready: threading.Barrier, decisions: list[object]) -> None:
            ready.wait(10)
            decisions.append(labels.perform(action))

        threads = [
            threading.Thread(target=act, args=(replace(each, session_id=session), ready, decisions))
            for each in (first, second)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sum(each is not None for each in decisions) >= 1


@pytest.mark.requirement("POL-9")
def test_labels_survive_a_restart_and_a_resumed_workspace(labels: Labels, tmp_path: Path) -> None:
    session, plain = labels.session(), labels.session()
    labels.perform(agent(CODE, session, registries=("pypi",), secrets=("KEY",)))
    again = Labels(tmp_path / "home")  # a new process with the same state folder
    assert again.found.of_session(session).labels == {Label.UNTRUSTED, Label.PRIVATE}
    assert again.perform(agent(CODE, session, allow_domains=("a.example",))) is not None
    labels.found.end_session(session)
    for resumed, is_asked in ((session, True), (plain, False)):
        new = labels.session()
        labels.found.resume(new, resumed)
        decision = labels.perform(widen(new, "a.example"))
        assert (decision is not None) == is_asked


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("mode", ["rw", "cow", "ro"])
def test_untrusted_content_comes_with_the_files_of_a_directory(
    labels: Labels, project: Path, mode: str
) -> None:
    def asks(directory: Path) -> bool:
        """Whether a new session that has read the directory may send anything."""
        reader = labels.session(directory)
        assert labels.perform(agent(FileOperation("read", "a"), reader)) is None
        return labels.perform(agent(SendReply("email", "x", "pair"), reader)) is not None

    writer = labels.session(project, mode)
    assert not asks(project)
    labels.perform(agent(CODE, writer, registries=("pypi",)))
    # Copies are not in the directory before a person applies them, and read-only writes nothing.
    assert asks(project) == (mode == "rw")
    if mode == "cow":
        labels.found.apply_changes(writer, str(project))
    for place in (project, project / "below", project.parent):
        assert asks(place) == (mode != "ro")
    assert not asks(project.parent / "project-2")
    if mode != "ro":
        (source,) = labels.found.folder.clear(str(project))
        assert source.name == "packages of pypi"
        assert not asks(project)


@pytest.mark.requirement("POL-9")
def test_another_session_of_the_same_conversation_does_not_escape(labels: Labels) -> None:
    one, two, context = labels.session(), labels.session(), new_id("ctx")
    assert (
        labels.perform(agent(InstallPackages("npm", ("left-pad",)), one, context=context)) is None
    )
    assert labels.perform(agent(CODE, two, secrets=("KEY",), context=context)) is None
    reply = agent(SendReply("email", "x", "pair"), two, context=context)
    assert labels.perform(reply) is not None
    assert labels.perform(replace(reply, context=new_id("ctx"), session_id=one)) is None
    labels.found.end_context(context)
    assert labels.found.of_context(context).sources == ()


@pytest.mark.requirement("POL-9")
def test_the_tool_of_a_server_brings_the_labels_of_the_server(labels: Labels) -> None:
    quiet, loud, context = labels.session(), labels.session(), new_id("ctx")
    run = RunServer("notes", ("notes",), hold)
    assert labels.perform(agent(run, quiet)) is None
    # A person has configured the server with both: that is the consent.
    started = agent(run, loud, secrets=("KEY",), allow_domains=("notes.example",))
    assert labels.perform(started) is None
    call = CallServerTool("notes", "read", {})
    assert labels.perform(agent(call, quiet, context=context)) is None
    assert labels.found.of_context(context).labels == {Label.UNTRUSTED}
    asked = labels.perform(agent(call, loud, context=context))
    assert asked is not None
    assert "MCP server notes" in asked.reason


@pytest.mark.requirement("POL-9")
def test_a_person_who_names_all_three_is_not_asked_and_what_comes_later_is(
    labels: Labels, project: Path
) -> None:
    session = labels.session(project)
    named = Action(
        principal=PERSON, operation=CODE, session_id=session, allow_domains=("a.example",)
    )
    assert labels.perform(named) is None
    assert labels.perform(replace(named, id=new_id("act"))) is None
    install = replace(named, operation=InstallPackages("pypi", ("tiny",)), allow_domains=())
    assert labels.perform(install) is not None
    wider = replace(named, operation=SetDomains(("b.example",)), allow_domains=("b.example",))
    assert labels.perform(wider) is not None
    # What an agent chooses itself is no setting: a page asks, where the files were read before.
    other = labels.session(project)
    assert labels.perform(agent(FileOperation("read", "a"), other)) is None
    assert labels.perform(agent(FetchUrl("https://a.example/"), other)) is not None


@pytest.mark.requirement("POL-9")
def test_a_finding_of_the_guard_makes_sending_wait_for_a_person(
    labels: Labels, project: Path
) -> None:
    session = labels.session(project)
    reply = agent(SendReply("email", "x", "pair"), session)
    assert labels.perform(agent(CODE, session)) is None
    assert labels.perform(reply) is None
    for severity, category, is_asked in (
        ("low", "injection", False),
        ("high", "secret", False),
        ("medium", "injection", True),
    ):
        action = agent(CODE, session)
        begun, _ = labels.judge(action)
        begun.commit()
        finding = Finding(category, severity, "found")  # type: ignore[arg-type]  # as listed
        begun.end(Outcome(status=Status.OK, action_id=action.id, findings=(finding,)))
        assert (labels.perform(replace(reply, id=new_id("act"))) is not None) == is_asked


@pytest.mark.requirement("POL-9")
def test_an_agents_own_tools_are_labelled_across_processes(labels: Labels, project: Path) -> None:
    def use(tool: str, **given: str) -> Action:
        return agent(UseTool(tool, given, str(project), agent_session="s-1", is_inside=True))

    assert labels.perform(use("Read", file_path="a")) is None
    alone = Labels(labels.home)  # a hook that ran in a process of its own
    asked = alone.perform(use("WebFetch", url="https://a.example/"))
    assert asked is not None
    assert alone.perform(use("mcp__notes__read")) is not None
    assert labels.found.of_context("agent s-1").labels == {Label.PRIVATE}
    # The agent's host has asked its user, and the result came.
    seen = alone.found.begin(agent(ToolResult("WebFetch", "text", agent_session="s-1")))
    seen.receive(())
    assert labels.found.of_context("agent s-1").is_complete
    assert labels.perform(use("Edit", file_path="a")) is None
    assert labels.found.folder.content_in(str(project))[0].name == "content of the web"
    other = replace(use("Read").operation, agent_session="s-2")  # type: ignore[type-var]
    assert labels.perform(agent(other)) is None


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize(("mode", "verdict"), [("deny", Verdict.DENY), ("show", None)])
def test_the_configuration_says_what_follows(
    tmp_path: Path, mode: FlowMode, verdict: Verdict | None
) -> None:
    labels = Labels(tmp_path / "home", mode)
    session = labels.session()
    labels.perform(agent(InstallPackages("pypi", ("tiny",)), session))
    action = agent(CODE, session, secrets=("KEY",), allow_domains=("a.example",))
    decision = labels.perform(action)
    assert (None if decision is None else decision.verdict) is verdict
    assert labels.found.of_session(session).is_complete == (verdict is None)


def test_a_trusted_domain_brings_no_label(tmp_path: Path) -> None:
    rules = LabelRules(trusted=("wiki.example", "*.corp.example"))
    labels = Labels(tmp_path / "home", rules=rules)
    session = labels.session()
    domains = ("wiki.example:8443", "a.corp.example")
    assert labels.perform(agent(CODE, session, secrets=("KEY",), allow_domains=domains)) is None
    assert labels.found.of_session(session).labels == {Label.PRIVATE}
    near = agent(CODE, session, allow_domains=("evilcorp.example",))
    assert labels.perform(near) is not None


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sources": [1]}', b"\xff\xfe"])
def test_unreadable_labels_count_as_all_three(labels: Labels, content: bytes) -> None:
    session = labels.session()
    path = Path(labels.store.session(session).folder, "labels.json")
    path.write_bytes(content)
    assert labels.found.of_session(session).is_complete
    assert labels.perform(agent(SendReply("email", "x", "pair"), session)) is not None


def test_labels_are_bounded_and_what_is_beyond_is_never_admitted(labels: Labels) -> None:
    session = labels.session()
    for number in range(80):
        labels.perform(widen(session, f"{number}.example"))
    found = labels.found.of_session(session)
    assert len(found.of(Label.EGRESS)) == 65
    assert found.of(Label.EGRESS)[-1].name == "further sources"
    assert len(found.to_json()["egress"]) == 8  # type: ignore[arg-type]  # a list


def test_weaker_settings_only_show() -> None:
    policy = Settings().policy
    for name in ("dangerously_without_rule_of_two", "dangerously_observe"):
        settings = Settings(policy=policy.model_copy(update={name: True}))
        assert flow_mode(settings) == "show"
    assert flow_mode(Settings()) == "ask"


@pytest.mark.requirement("POL-9")
def test_consent_to_a_long_name_is_none_to_another_that_begins_alike(labels: Labels) -> None:
    long = "a" * 230
    packages = tuple(f"p{number}" for number in range(12))
    for first, second in (
        (widen("", f"{long}.example"), widen("", f"{long}.evil")),
        (
            agent(InstallPackages("pypi", packages)),
            agent(InstallPackages("pypi", (*packages[:-1], "evil"))),
        ),
    ):
        session = labels.session()
        labels.perform(agent(CODE, session, secrets=("KEY",)))
        labels.perform(agent(SendReply("email", "x", "pair"), session))
        for action, is_asked in ((first, True), (first, False), (second, True)):
            wanted = replace(action, session_id=session, id=new_id("act"))
            assert (labels.perform(wanted, answer="session") is not None) == is_asked


@pytest.mark.requirement("POL-9")
def test_a_live_session_labels_its_directory_again_after_a_person_cleared_it(
    labels: Labels, project: Path
) -> None:
    writer = labels.session(project, "rw")
    folder = labels.found.folder
    for _ in range(2):
        assert labels.perform(agent(CODE, writer, registries=("pypi",))) is None
        assert [each.name for each in folder.content_in(str(project))] == ["packages of pypi"]
        folder.clear(str(project))
        assert folder.content_in(str(project)) == ()


@pytest.mark.requirement("POL-9", "POL-8")
def test_an_answer_for_the_session_from_before_a_label_does_not_count() -> None:
    action = agent(CODE, "sbx_" + "0" * 26)
    before = Decision(Verdict.ASK, "Code", "a rule asks")
    held = LabelSet((LabelSource(Label.UNTRUSTED, "x"), LabelSource(Label.PRIVATE, "y")))
    brought = [LabelSource(Label.EGRESS, "z")]
    after = object_to(held, brought, verdict=Verdict.ASK, action_id=action.id)
    one, two = (question_about(action, each, timeout_s=1.0) for each in (before, after))
    assert one.call_sha256
    assert one.call_sha256 != two.call_sha256
    assert two.parts == (
        "untrusted content: x by this action",
        "private data: y by this action",
        "egress: z by this action",
    )
    assert two.proposals == ()
