"""The question that a person reads about an action (POL-8). Pure."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import assert_never

from cellwall.core.approvals import CONNECT, ID_PREFIX, Proposal, Question
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.errors import Denied
from cellwall.core.files import FILE_READS, FileOperation
from cellwall.core.ids import new_id
from cellwall.core.labels import RULE_OF_TWO
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.showing import block, is_shown_whole, one_line, warnings
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    REMOTE_INTERFACES,
    Action,
    CallTool,
    FetchUrl,
    Principal,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.policy_places import is_shipped
from cellwall.runtime.rule_proposals import asking_parts, propose

_MAX_TEXT = 16_384
_MAX_PARTS = 32
_MAX_PART_ROWS = 12
_MAX_ROWS, _MAX_CHARACTERS = 120, 8000
"""Of the operation shown; a person would not read more."""
_VALUE_CHARACTERS = (4000, 1000, 300, 100)
"""Lengths to which texts in a tool's input are cut, until all of its keys can be shown."""
# By full name: `./sh` may be any program of the workspace.
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash"})
# Input keys of agents' tools with the text that a person must see first.
_SUBJECT_KEYS = ("command", "file_path", "notebook_path", "path", "url", "query", "pattern")


def question_about(action: Action, decision: Decision, *, timeout_s: float) -> Question:
    """The question about an action; its deadline starts now."""
    tool, text = tool_and_subject(action)
    digest = call_sha256(action)
    is_flow = decision.rule == RULE_OF_TWO
    if is_flow and digest:
        # Attack: an answer for the session, given before the session had these labels.
        digest = hashlib.sha256(f"{digest} {decision.reason}".encode()).hexdigest()
    return make_question(
        principal=action.principal,
        tool=tool,
        text=text,
        decision=decision,
        timeout_s=timeout_s,
        details=circumstances(action),
        action_id=action.id,
        session_id=session_of(action),
        call_sha256=digest,
        # A rule about calls says nothing about what meets in a session, and none makes a
        # destination known.
        may_be_a_rule=not is_flow
        and not is_shipped(action.policy)
        and not isinstance(action.operation, ReachHost),
    )


def disclosure_question(action: Action, reason: str, *, timeout_s: float) -> Question:
    """Whether a model may see the result of an action. The answer holds for this one result: an
    approval for a session allows the call, and says nothing about its results."""
    _, text = tool_and_subject(action)
    return make_question(
        principal=action.principal,
        tool="Show",
        text=text,
        decision=Decision.built_in(Verdict.ASK, "guard", reason),
        timeout_s=timeout_s,
        details=("The action has run. The question is whether the model sees its result.",),
        action_id=action.id,
        may_be_a_rule=False,
    )


def make_question(
    *,
    principal: Principal,
    tool: str,
    text: str,
    decision: Decision,
    timeout_s: float,
    details: Sequence[str] = (),
    action_id: str = "",
    session_id: str = "",
    call_sha256: str = "",
    may_be_a_rule: bool = True,
) -> Question:
    """A question about any call."""
    now = time.time()
    parts = tuple(part.subject for part in asking_parts(decision) if part.subject)
    others = tuple(part for part in dict.fromkeys(parts) if part != text)
    if len(others) > _MAX_PARTS:
        raise _too_much(f"{len(others)} parts of the command would have to be judged")
    proposals = propose(tool, text, decision) if may_be_a_rule else ()
    question = Question(
        id=new_id(ID_PREFIX),
        action_id=action_id,
        session_id=session_id,
        principal=principal,
        tool=tool,
        text=_shorten(text),
        details=tuple(details),
        reason=decision.reason,
        rule=decision.rule,
        parts=tuple(_shorten(part) for part in others),
        proposals=proposals,
        call_sha256=call_sha256,
        shown="",
        asked_s=now,
        deadline_s=now + timeout_s,
    )
    source = decision.source
    if question.principal.interface in REMOTE_INTERFACES:
        source = os.path.basename(source)  # the question is shown on other machines
    return replace(question, shown=_render(question, text, source=source))


def session_of(action: Action) -> str:
    """The session for which an answer can hold: that of Cellwall or of the agent's host."""
    if isinstance(action.operation, UseTool):
        return action.operation.agent_session
    return action.session_id or ""


def tool_and_subject(action: Action) -> tuple[str, str]:  # noqa: C901, PLR0911  # one case for each operation
    """The tool and its subject, as rules spell them."""
    match action.operation:
        case RunCommand(argv):
            is_script = len(argv) == 3 and argv[0] in _SHELLS and argv[1] == "-c"
            return "Bash", argv[2] if is_script else shlex.join(argv)
        case RunCode(language, code):
            return "Code", f"# {language}\n" + code.decode("utf-8", "backslashreplace")
        case FileOperation() as file:
            tool = "Read" if file.name in FILE_READS else "Write"
            moved = f" -> {file.target}" if file.target else ""
            return tool, f"{file.name} {file.path}{moved}"
        case TakeSnapshot() | RestoreSnapshot() as operation:
            return operation.tool, operation.subject
        case ProcessOperation() as process:
            return "Process", f"{process.name} of process {process.process}, {process.number}"
        case ConnectPort(port):
            return "Port", f"connect to port {port} of the sandbox"
        case CallTool() | CallServerTool() | RunServer() as call:
            return _call_subject(call)
        case InstallPackages(ecosystem, requirements):
            return "Install", " ".join((f"{ecosystem}:", *requirements))
        case ReachHost() as host:
            return CONNECT, host.destination
        case FetchUrl() | SetDomains() | ServeClient() as reach:
            return "WebFetch", _destinations(reach, action)
        case ReceiveMessage() | SendReply() as message:
            return "Chat", message.content
        case UseAccount() as account:
            event = {} if account.event is None else asdict(account.event)
            period = {"start": account.start, "end": account.end} if not event else {}
            return account.name, _input_text({"account": account.account, **period, **event})
        case UseTool() | ToolResult() as use:
            return use.tool, _subject(use) if isinstance(use, UseTool) else "its result"
        case _ as unknown:
            assert_never(unknown)


def _call_subject(call: CallTool | CallServerTool | RunServer) -> tuple[str, str]:
    if isinstance(call, CallServerTool):
        return call.rule_name, _input_text(dict(call.arguments))
    if isinstance(call, RunServer):
        return ("WebFetch", call.url) if call.url else ("Bash", shlex.join(call.argv))
    return call.name, _input_text({"args": list(call.args), "kwargs": dict(call.kwargs)})


def _destinations(reach: FetchUrl | SetDomains | ServeClient, action: Action) -> str:
    if isinstance(reach, FetchUrl):
        return reach.url
    if isinstance(reach, SetDomains):
        return ", ".join(reach.domains)
    return f"{', '.join(action.allow_domains)} by the client {reach.client}"


def _subject(use: UseTool) -> str:
    """The one significant text of the input, if there is no other; else the whole input."""
    named = [key for key in _SUBJECT_KEYS if isinstance(use.input.get(key), str)]
    harmless = {"description", "timeout", "run_in_background"}
    if len(named) == 1 and use.input.keys() <= {named[0], *harmless}:
        return str(use.input[named[0]])
    return _input_text(dict(use.input))


def _input_text(value: object) -> str:
    """A tool's input with every key: a third key could hide between two long texts."""
    for most in (None, *_VALUE_CHARACTERS):
        shorter = value if most is None else _cut(value, most)
        text = json.dumps(shorter, ensure_ascii=False, indent=1, default=str)
        if is_shown_whole(text, max_rows=_MAX_ROWS, max_characters=_MAX_CHARACTERS):
            return text
    raise _too_much("the input has more keys and values than can be shown")


def _cut(value: object, most: int) -> object:
    """The value with the middle of every long text replaced by a note."""
    match value:
        case str() if len(value) > most:
            head, tail = value[: most // 2], value[-most // 2 :]
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
            left_out = len(value) - len(head) - len(tail)
            return f"{head}[{left_out} characters left out, SHA-256 of all {digest}]{tail}"
        case Mapping():
            return {key: _cut(each, most) for key, each in value.items()}
        case list() | tuple():
            return [_cut(each, most) for each in value]
        case _:
            return value


def _too_much(problem: str) -> Denied:
    """The denial of a question too large to show: a person cannot approve unseen text."""
    return Denied(
        f"a person would have to approve it, and {problem}",
        hint="Do it in smaller steps.",
        code="CW-ASK-TOO-MUCH",
    )


def circumstances(action: Action) -> tuple[str, ...]:
    """Context that changes the meaning of a call. Names of variables, never their values."""
    found: list[str] = []
    operation, workspace = action.operation, action.workspace
    if isinstance(operation, RunCommand | UseTool):
        found.append(f"in {operation.cwd}")
    if isinstance(operation, RunCommand) and action.second_user:
        found.append(f"as {operation.user} of the sandbox, without any right of the host's root")
    if workspace.mode is not WorkspaceMode.PRIVATE:
        found.append(f"with {workspace.directory} ({workspace.mode.value})")
    if names := sorted({*action.env, *action.brief}):
        found.append(f"with the variables {', '.join(names)}")
    if action.stdin is not None:
        found.append(f"with {len(action.stdin)} bytes of standard input")
    for verb, words in (
        ("may reach", action.allow_domains),
        ("may install packages from", action.registries),
        ("has requests made with the secrets", action.secrets),
        ("may call", action.tools),
        ("sees the skills", action.skills),
    ):
        if words:
            found.append(f"{verb} {', '.join(words)}")
    if isinstance(operation, ReachHost):
        # Attack: a program of an earlier run that connects during another one, and is taken for it.
        source = "from code in the sandbox, during" if action.session_id else "from code of"
        found += [f"by {operation.method}, {source} {operation.parent}", *_extent(action)]
    if isinstance(operation, FileOperation) and operation.content:
        digest = hashlib.sha256(operation.content).hexdigest()
        found.append(f"{len(operation.content)} bytes, SHA-256 {digest}")
    if isinstance(operation, FileOperation) and operation.source_sha256:
        found.append(f"{operation.source_bytes} bytes, SHA-256 {operation.source_sha256}")
    return tuple(found)


def _extent(action: Action) -> tuple[str, str]:
    """How long an approval of a destination holds."""
    where = f"sandbox {action.session_id}" if action.session_id else "a single run"
    session = "; for this session: until the sandbox ends" if action.session_id else ""
    return where, f"An approval holds for this host and port, until the run ends{session}."


def call_sha256(action: Action) -> str:
    """The digest of everything that defines the call; equal digests mean the same call.

    Empty for an archive: its content is unknown, so two cannot be compared.
    """
    operation = action.operation
    if isinstance(operation, FileOperation) and _is_unknown(operation):
        return ""
    if isinstance(operation, CallTool):
        operation = replace(operation, parent="")
    elif isinstance(operation, ReachHost):
        operation = replace(operation, parent="", method="")
    elif isinstance(operation, UseTool):
        operation = replace(operation, call="")
    # Scopes bound what is permitted, not what is asked; and the order in a set is arbitrary.
    who = replace(action.principal, scopes=None)
    same = repr(replace(action, principal=who, operation=operation, id=""))
    return hashlib.sha256(same.encode("utf-8", "surrogatepass")).hexdigest()


def _is_unknown(operation: FileOperation) -> bool:
    if operation.name == "read":
        return False  # the same bytes, wherever they go
    is_unread = operation.source is not None and not operation.source_sha256
    return is_unread or operation.sink is not None


def is_text_whole(question: Question) -> bool:
    """Whether nothing was left out of the text of a question."""
    return len(question.text) <= _MAX_TEXT


def _shorten(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _render(question: Question, text: str, *, source: str) -> str:
    """The text for the person. Our text starts at the left edge, quoted text behind bars."""
    who = f"{one_line(question.principal.name)} (through {one_line(question.principal.interface)})"
    lines = [f"{who} wants to use {one_line(question.tool)}:\n"]
    lines.append(block(text, max_rows=_MAX_ROWS, max_characters=_MAX_CHARACTERS))
    cautions = warnings(text, max_characters=_MAX_CHARACTERS)
    lines += [f"Mind: {warning}.\n" for warning in cautions]
    if question.details:
        lines += ["Circumstances:\n", *(block(each) for each in question.details)]
    if question.parts:
        lines.append("The policy asks about:\n")
        lines += [block(part, max_rows=_MAX_PART_ROWS) for part in question.parts]
    lines += ["Because:\n", block(question.reason or "no reason is given", max_rows=6)]
    if question.rule:
        where = f" ({source})" if source else ""
        lines += ["By the rule:\n", block(f"{question.rule}{where}", max_rows=4)]
    lines += _render_rules(question.proposals)
    return "".join(lines)


def _render_rules(proposals: Sequence[Proposal]) -> list[str]:
    lines: list[str] = []
    for number, proposal in enumerate(proposals, start=1):
        lines.append(f"Rule {number} that could be written:\n")
        lines += [block(proposal.rule), "It would also allow:\n", block(proposal.also_allows)]
    return lines
