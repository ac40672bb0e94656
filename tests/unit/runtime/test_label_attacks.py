"""Attacks on labels of information flow: each tries to lose one, or to bring two at once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.errors import CellwallError, Denied, SandboxFailed
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.labels import Label, LabelSource
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    FetchUrl,
    RunCode,
    ToolResult,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from unit.runtime.test_session_labels import CODE, Labels, agent, hold, widen

REPLY = SendReply("email", "x", "pair")
PAGE = FetchUrl("https://a.example/")


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    return Labels(tmp_path / "home")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "src").mkdir(parents=True)
    return tmp_path / "project"


def asks(labels: Labels, directory: Path) -> bool:
    """Whether a new session that has read the directory may send anything."""
    reader = labels.session(directory)
    assert labels.perform(agent(FileOperation("read", "a"), reader)) is None
    return labels.perform(agent(REPLY, reader)) is not None


def use(tool: str, cwd: Path, *, project: str = "", session: str = "s-1", **given: str) -> Action:
    operation = UseTool(tool, given, str(cwd), agent_session=session, is_inside=True)
    return agent(replace(operation, project=project))


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("is_tainted", [True, False])
def test_a_page_is_not_laundered_through_another_sandbox_of_the_conversation(
    labels: Labels, project: Path, is_tainted: bool
) -> None:
    """A page is fetched without a sandbox, its text is written into one, which outlives it all."""
    kept, copy, context = labels.session(), labels.session(project, "cow"), new_id("ctx")
    if is_tainted:
        assert labels.perform(agent(PAGE, context=context)) is None
    for session in (kept, copy):
        labels.perform(agent(FileOperation("write", "a"), session, context=context), answer="once")
        labels.found.end_session(session)
    labels.found.end_context(context)
    new = labels.session()
    labels.found.resume(new, kept)
    labels.perform(agent(CODE, new, secrets=("KEY",)))
    assert (labels.perform(agent(REPLY, new)) is not None) == is_tainted
    labels.found.apply_changes(copy, str(project))
    assert asks(labels, project) == is_tainted


@pytest.mark.requirement("POL-9", "SRV-7")
@pytest.mark.parametrize("is_tainted", [True, False])
def test_what_a_conversation_tells_a_server_comes_with_the_server(
    labels: Labels, project: Path, is_tainted: bool
) -> None:
    """A server that two conversations share keeps the notes of both, in memory and in files."""
    server, first, second = labels.session(project, "rw"), new_id("ctx"), new_id("ctx")
    labels.perform(agent(RunServer("notes", ("notes",), hold), server))
    call = CallServerTool("notes", "write", {})
    quiet = labels.session()
    labels.perform(agent(RunServer("notes", ("notes",), hold), quiet))
    if is_tainted:
        labels.perform(agent(CODE, labels.session(), context=first, secrets=("KEY",)))
    labels.perform(agent(call, quiet, context=first))
    labels.perform(agent(call, quiet, context=second))
    found = {each.name for each in labels.found.of_context(second).of(Label.PRIVATE)}
    assert found == ({"secret KEY"} if is_tainted else set())
    # The server's directory has the content, too.
    assert not asks(labels, project)
    if is_tainted:
        labels.perform(agent(call, server, context=first))
    assert asks(labels, project) == is_tainted


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize(
    ("tool", "given"),
    [("Write", {"file_path": "{}/a"}), ("Edit", {"file_path": "{}/../project/a"})],
)
def test_a_hooked_agent_labels_the_directory_that_it_writes_not_the_one_it_is_in(
    labels: Labels, project: Path, tmp_path: Path, tool: str, given: dict[str, str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert labels.perform(use("WebFetch", elsewhere, url="https://a.example/")) is None
    named = {key: text.format(project) for key, text in given.items()}
    assert not asks(labels, project)
    labels.perform(use(tool, elsewhere, **named), answer="once")
    assert asks(labels, project)
    assert not asks(labels, elsewhere)


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("Read", {"file_path": "{}/a"}),
        ("Read", {"file_path": "link/a"}),
        ("Grep", {"pattern": "x", "path": "{}"}),
        ("Glob", {"pattern": "{}/**/*.md"}),
        ("Read", {"file_path": "b"}),  # the control: a file of its own
    ],
)
def test_a_hooked_agent_has_read_the_directory_of_the_file_that_it_names(
    labels: Labels, project: Path, tmp_path: Path, tool: str, given: dict[str, str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(project)
    labels.found.folder.taint(str(project), [LabelSource(Label.UNTRUSTED, "a page")])
    named = {key: text.format(project) for key, text in given.items()}
    assert labels.perform(use(tool, elsewhere, **named)) is None
    is_tainted = Label.UNTRUSTED in labels.found.of_context("agent s-1").labels
    assert is_tainted == (given != {"file_path": "b"})


@pytest.mark.requirement("POL-9")
def test_a_command_in_a_subdirectory_labels_the_whole_project_that_its_sandbox_has(
    labels: Labels, project: Path
) -> None:
    assert labels.perform(use("WebFetch", project, url="https://a.example/")) is None
    command = use("Bash", project / "src", project=str(project), command="make")
    labels.perform(command, answer="once")
    assert set(labels.found.folder.tainted()) == {str(project)}


@pytest.mark.requirement("POL-9")
def test_two_hooks_at_once_in_two_processes_do_not_both_pass(labels: Labels, project: Path) -> None:
    other = Labels(labels.home)
    one, first = labels.judge(use("Read", project, file_path="a"))
    two, second = other.judge(use("WebFetch", project, url="https://a.example/"))
    assert first is second is None  # neither knows of the other
    one.commit()
    with pytest.raises(Denied, match="private data") as refused:
        two.commit()
    assert refused.value.code == "CW-RULE-OF-TWO"
    two.end(None)
    assert labels.found.of_context("agent s-1").labels == {Label.PRIVATE}
    # The control: two that do not complete the three both pass.
    more, third = other.judge(use("Read", project / "src", file_path="a"))
    assert third is None
    assert labels.perform(use("LS", project)) is None
    more.commit()


@pytest.mark.requirement("POL-9")
def test_a_question_of_the_agents_host_counts_as_a_yes_until_its_result_comes(
    labels: Labels, project: Path
) -> None:
    """A failed tool has no result, and its answer is known to the host alone."""
    fetch = use("WebFetch", project, url="https://a.example/")
    assert labels.perform(fetch) is None
    begun, asked = labels.judge(use("Read", project, file_path="a"))
    assert asked is not None
    begun.commit()  # as the pipeline does before it leaves the question to the host
    begun.end(Outcome(status=Status.DENIED, action_id=fetch.id))
    assert labels.found.of_context("agent s-1").is_complete
    seen = labels.found.begin(agent(ToolResult("Read", "text", agent_session="s-1")))
    seen.receive(())
    assert labels.perform(replace(fetch, id=new_id("act"))) is not None  # its consent is gone


@pytest.mark.requirement("POL-9")
def test_a_label_that_could_not_be_written_refuses_the_next_action_as_well(
    labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, action = labels.session(), agent(CODE, None, secrets=("KEY",))
    action = replace(action, session_id=session)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", refuse)
        for _ in range(2):
            begun, decision = labels.judge(replace(action, id=new_id("act")))
            assert decision is None
            with pytest.raises(SandboxFailed):
                begun.commit()
            begun.end(None)
    assert labels.perform(replace(action, id=new_id("act"))) is None
    again = Labels(labels.home)
    assert again.found.of_session(session).labels == {Label.PRIVATE}


@pytest.mark.requirement("POL-9")
def test_a_session_whose_record_cannot_be_read_is_not_taken_for_one_without_labels(
    labels: Labels, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with no free descriptor: the first action of a session on a directory."""
    session = labels.session(project)
    with monkeypatch.context() as scarce:
        scarce.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(OSError(24, "x")))
        with pytest.raises(CellwallError):
            labels.judge(agent(CODE, session, allow_domains=("a.example",)))
    assert labels.perform(agent(CODE, session)) is None
    assert labels.found.of_session(session).labels == {Label.PRIVATE}


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("place", ["moved", "moved/src", "elsewhere"])
def test_a_renamed_directory_keeps_its_label(labels: Labels, project: Path, place: str) -> None:
    labels.perform(agent(CODE, labels.session(project, "rw"), registries=("pypi",)))
    moved = project.rename(project.parent / "moved")
    (project.parent / "elsewhere").mkdir()
    assert asks(labels, project.parent / place) == (place != "elsewhere")
    assert Labels(labels.home).found.folder.clear(str(moved))
    assert not asks(labels, moved)


@pytest.mark.requirement("POL-9")
def test_many_directories_with_many_sources_stay_readable(labels: Labels, tmp_path: Path) -> None:
    folder = labels.found.folder
    sources = [LabelSource(Label.UNTRUSTED, f"{number:0200}", "act") for number in range(64)]
    folder.taint("/tmp/first", sources[:1])
    for number in range(60):
        folder.taint(f"/tmp/{number}", sources)
    folder.content_in("/tmp/0")
    stamp = folder.stamp
    folder.taint("/tmp/0", sources[9:12])  # known to have more than are named: nothing to write
    assert folder.stamp == stamp
    again = Labels(labels.home).found.folder
    assert len(again.tainted()) == 61
    assert again.content_in("/tmp/first") == tuple(sources[:1])
    assert again.content_in("/tmp/0")[-1].name == "further sources"
    assert again.content_in(str(tmp_path)) == ()


@pytest.mark.requirement("POL-9")
def test_a_conversation_that_goes_on_for_months_is_not_forgotten(labels: Labels) -> None:
    context, other = new_id("ctx"), new_id("ctx")
    for each in (context, other):
        labels.perform(agent(PAGE, context=each))
        os.utime(labels.found.folder.path_of(each), (1e9, 1e9))
    labels = Labels(labels.home)
    labels.perform(agent(PAGE, context=context))
    labels.perform(agent(PAGE, context=new_id("ctx")))  # a new one: old ones are removed
    again = Labels(labels.home).found
    assert again.of_context(context).labels == {Label.UNTRUSTED, Label.EGRESS}
    assert again.of_context(other).labels == set()


@pytest.mark.requirement("POL-9")
def test_a_single_run_on_a_copy_that_is_killed_leaves_its_labels(
    labels: Labels, project: Path
) -> None:
    request = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, str(project))
    begun, _ = labels.judge(agent(CODE, registries=("pypi",), workspace=request))
    begun.commit()
    run = labels.session(project, "cow")  # as the sandbox makes it for the run
    begun.keep_with(run)  # and nothing after that
    labels.found.apply_changes(run, str(project))
    assert asks(labels, project)


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("name", ["\udcff", "new\nline", "a" * 250, "é\u202e"])
def test_odd_paths_are_labelled_like_others(labels: Labels, tmp_path: Path, name: str) -> None:
    project = tmp_path / name
    project.mkdir()
    labels.perform(agent(CODE, labels.session(project, "rw"), registries=("pypi",)))
    assert asks(Labels(labels.home), project)


@pytest.mark.requirement("POL-9", "SRV-7")
@pytest.mark.parametrize("is_named", [True, False])
def test_consent_to_a_server_holds_for_what_the_server_itself_brings(
    labels: Labels, is_named: bool
) -> None:
    server, call = labels.session(), CallServerTool("far", "search", {})
    run = agent(RunServer("far", ("far",), hold), server)
    labels.perform(replace(run, secrets=("TOKEN",), allow_domains=("far.example",)))

    def calls(context: str) -> bool:
        begun = labels.found.begin(agent(call, server, context=context))
        decision = begun.judge(agent(call, server, context=context), is_named=is_named)
        if decision is None:
            begun.commit()
        begun.end(None)
        return decision is None

    alone = new_id("ctx")
    assert calls(alone) == is_named
    # Whatever comes from elsewhere asks, whether it comes before or after.
    if is_named:
        assert labels.perform(agent(PAGE, context=alone)) is not None
        assert calls(alone)
    for first in (agent(PAGE), agent(RunCode("python", b"1"), secrets=("KEY",))):
        context = new_id("ctx")
        assert labels.perform(replace(first, context=context)) is None
        assert not calls(context)


def test_a_message_that_names_a_session_labels_the_session(labels: Labels, project: Path) -> None:
    session = labels.session(project)
    labels.perform(agent(ReceiveMessage("email", "x", "pair"), session, context="pairing p"))
    labels.perform(agent(CODE, session))
    assert labels.perform(widen(session, "a.example")) is not None


@pytest.mark.requirement("POL-9")
def test_a_person_who_names_a_long_list_of_domains_is_not_asked_again(
    labels: Labels, project: Path
) -> None:
    session = labels.session(project)
    domains = tuple(f"{number}.example" for number in range(2000))
    named = agent(CODE, session, allow_domains=domains)
    for _ in range(2):
        assert labels.perform(replace(named, id=new_id("act"))) is None
    assert len(labels.found.of_session(session).of(Label.EGRESS)) < 64
    other = replace(named, id=new_id("act"), allow_domains=(*domains[:-1], "evil.example"))
    assert labels.perform(other) is not None
