"""Tests a policy by a table of calls, and learns rules from the audit log.

Learnt rules are written in four steps:
  (1) find the file, and the layer of its rules;
  (2) draft the change; a person sees exactly the text that is written;
  (3) write the draft, if the file has not changed since;
  (4) trust a project's file again if it was trusted before or is new: the person has seen all that
      is new in it.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any

from cellwall.admin import audit_queries
from cellwall.admin.policy_trust import Offered, PolicyTrust, parsed_as
from cellwall.audit.files import closing_fd
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.files import FILE_READS
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.core.verdict import Decision
from cellwall.policy.calls import ToolCall, from_json
from cellwall.policy.learning import learn as learn_from
from cellwall.policy.lessons import (
    ANY_FOLDER,
    Lesson,
    RefusedCall,
    RuleFile,
    rule_lines,
    to_toml,
)
from cellwall.policy.links import targets
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.policy.tables import CallCase, read_table
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase as AskApprover
from cellwall.runtime.judging import require
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.policy_file import PolicyDraft, draft_rules, write_draft
from cellwall.runtime.policy_places import (
    PROJECT_FILES,
    absolute,
    is_there,
    project_files,
    user_policy,
)
from cellwall.runtime.rule_judging import INSIDE, call_inside
from cellwall.runtime.vault import AskPassphrase

__all__ = [
    "Lesson",
    "PolicyTarget",
    "Tried",
    "diff",
    "draft",
    "learn",
    "target",
    "test",
    "to_toml",
    "write",
]

_MAX_TABLE_BYTES = 4 << 20
_MAX_RECORDS = 200_000
_MAX_CALLS = 2_000
_PLAIN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


# Tests


@dataclass(frozen=True, slots=True)
class Tried:
    """One call of a table, and the decision on it."""

    case: CallCase
    decision: Decision

    @property
    def is_right(self) -> bool:
        return self.decision.verdict is self.case.verdict


def test(path: str, *, policies: Sequence[str], environ: Mapping[str, str]) -> list[Tried]:
    """Judge the calls of a table by these policy files, else by the files that it names, else by
    those that apply in its directory."""
    here, home = os.getcwd(), os.path.expanduser("~")
    whole = os.path.abspath(path)
    text = _read_table(path)
    table = read_table(text, file=path, folder=os.path.dirname(whole), cwd=here, home=home)
    named = [os.path.abspath(each) for each in policies] or table.policies
    # As if all were signed: nothing runs by this verdict.
    policy = effective_policy(named=named, cwd=table.cwd, environ=environ, grants=None)
    return [Tried(case, policy.check(case.call)) for case in table.cases]


def read_plain(path: str, *, max_bytes: int) -> bytes:
    """The content of a regular file, at most one byte more than allowed; else `OSError`."""
    with closing_fd(os.open(path, _PLAIN_FILE)) as opened:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError("not a regular file")
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(max_bytes + 1)


def _read_table(path: str) -> str:
    try:
        raw = read_plain(path, max_bytes=_MAX_TABLE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the table {os.path.basename(path)!r} cannot be read",
            hint="Name a TOML file with calls and their verdicts; see --help.",
            code="CW-POLICY-TABLE",
            detail=str(error),
        ) from None
    if len(raw) > _MAX_TABLE_BYTES:
        raise ConfigError("the table is too large", hint="Split it.", code="CW-POLICY-TABLE")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise ConfigError(
            "the table is not UTF-8 text", hint="Save it as UTF-8.", code="CW-POLICY-TABLE"
        ) from None


# Learning


def learn(
    *,
    session: str | None,
    since: datetime | None,
    policies: Sequence[str],
    environ: Mapping[str, str],
    place: RuleFile = ANY_FOLDER,
    ask: AskPassphrase | None = None,
) -> Lesson:
    """The narrowest rules for logged calls that the rules in force here do not allow.

    `session` is a sandbox's id, or the agent's own name for its session.
    """
    calls: dict[str, ToolCall] = {}
    unread: list[RefusedCall] = []
    for record in islice(_records(session, since, ask), _MAX_RECORDS):
        body = record["body"]
        try:
            _refuse_other_folder(body, place)
            for call in calls_of(body):
                calls.setdefault(_key(call), call)
        except BadInput as problem:
            unread.append(RefusedCall(_summary(body), problem.message))
            continue
        if len(calls) > _MAX_CALLS:
            raise BadInput(
                f"the audit log holds more than {_MAX_CALLS} different calls",
                hint="Select fewer with --since or --session.",
                code="CW-TOO-MUCH",
            )
    policy = effective_policy(named=policies, cwd=os.getcwd(), environ=environ, grants=None)
    return learn_from(calls.values(), policy.rules, links=targets, unread=unread, place=place)


def _records(
    session: str | None, since: datetime | None, ask: AskPassphrase | None
) -> Iterator[dict[str, Any]]:
    """Denials, and calls that ran only in observe mode or after an answer, the oldest first."""
    is_sandbox = session is not None and session.startswith("sbx_")
    query = audit_queries.Query(session_id=session if is_sandbox else None, since=since)
    for found in audit_queries.everything(query, ask=ask):
        record = found.record
        body = record["body"]
        if "sealed" in body:  # erased: nothing is known of the call
            continue
        if session is not None and not is_sandbox and body.get("agent_session") != session:
            continue
        if record["kind"] == EventKind.DENIAL.value:
            yield record
        elif record["kind"] == EventKind.INTENT.value:
            decision = body.get("decision")
            is_open = isinstance(decision, dict) and (
                decision.get("rule") == "observe" or decision.get("verdict") != "allow"
            )
            if is_open:
                yield record


def calls_of(body: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of a record, as they were judged; raises for a truncated one."""
    match body:
        case {"command": _}:
            return [_command_of(body)]
        case {"language": str() as language, "code_sha256": str()}:
            return [call_inside("Code", language=language)]
        case {"file": str() as name, "path": str() as path}:
            tool = "Read" if name in FILE_READS else "Write"
            target = body.get("target")
            paths = [path, *([target] if isinstance(target, str) and target else [])]
            return [call_inside(tool, file_path=each or ".") for each in paths]
        case {"url": str() as url}:
            return [call_inside("WebFetch", url=url)]
        case {"tool": str(), "arguments": str()}:
            return [_tool_call_of(body)]
    return []


def _refuse_other_folder(body: Mapping[str, Any], place: RuleFile) -> None:
    """Attack: a request of a misled agent in one project becomes a rule of another project."""
    if place.layer is not Layer.PROJECT or not {"tool", "cwd"} <= body.keys():
        return  # a call inside a sandbox has no host folder
    cwd, folder = os.path.realpath(_cwd_of(body)), os.path.realpath(place.folder)
    if os.path.commonpath([cwd, folder]) != folder:
        raise BadInput(
            "the call was made in another folder, where rules of this project do not apply; "
            "learn there, or for your own policy with --user"
        )


def _command_of(body: Mapping[str, Any]) -> ToolCall:
    words = body["command"]
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise BadInput("the record is truncated")
    if _digest("\0".join(words)) != body.get("command_sha256"):
        raise BadInput("the record is truncated")
    return ToolCall("Bash", {"command": shlex.join(words)}, _cwd_of(body), INSIDE)


def _tool_call_of(body: Mapping[str, Any]) -> ToolCall:
    arguments = body["arguments"]
    # A truncated or redacted text is not the call that was made.
    if "arguments_sha256" in body and _digest(arguments) != body["arguments_sha256"]:
        raise BadInput("the record is truncated or redacted")
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        raise BadInput("the record is truncated") from None
    if isinstance(found, list):  # a host function: positional and keyword arguments
        found = found[-1] if found else {}
    home = os.path.expanduser("~")
    return from_json({"tool": body["tool"], "input": found}, cwd=_cwd_of(body), home=home)


def _cwd_of(body: Mapping[str, Any]) -> str:
    cwd = body.get("cwd")
    return cwd if isinstance(cwd, str) and os.path.isabs(cwd) else "/"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _summary(body: Mapping[str, Any]) -> str:
    return f"{body.get('tool', 'a command')}({body.get('arguments', '')})"[:80]


def _key(call: ToolCall) -> str:
    return json.dumps([call.tool, dict(call.input), call.cwd], default=str, sort_keys=True)


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """A policy file to which rules can be added."""

    path: str
    layer: Layer
    folder: str = ""
    """The folder of the project."""

    @property
    def place(self) -> RuleFile:
        return RuleFile(self.layer, self.folder)


def target(
    *, is_user: bool, policies: Sequence[str], cwd: str, environ: Mapping[str, str]
) -> PolicyTarget:
    """(1) The named file, the user's own, or that of the current project."""
    if is_user and policies:
        raise BadInput(
            "--user and --policy exclude each other", hint="Use one of them.", code="CW-USAGE"
        )
    if policies:
        return PolicyTarget(os.path.join(cwd, policies[-1]), Layer.SESSION)
    nearest = next(project_files(cwd), None)
    own = user_policy(environ)
    is_home = os.path.realpath(cwd) in {os.path.realpath(os.path.expanduser("~")), "/"}
    if is_user or (nearest is None and (is_home or is_there(own))):
        return PolicyTarget(own, Layer.USER)
    folder = cwd if nearest is None else os.path.dirname(os.path.dirname(nearest))
    path = os.path.join(folder, PROJECT_FILES[0])
    real = os.path.join(os.path.realpath(folder), PROJECT_FILES[0])
    if os.path.realpath(path) != real:
        # Attack: a project whose policy is a symlink to a file of the user.
        raise BadInput(
            "the project's policy file, or its folder, is a symbolic link",
            hint="Replace it by a regular file, or use --user.",
            code="CW-POLICY-THERE",
        )
    return PolicyTarget(path, Layer.PROJECT, folder)


def draft(lesson: Lesson, at: PolicyTarget) -> PolicyDraft:
    """(2) The file with the proposed rules."""
    today = datetime.now(UTC).date().isoformat()
    reason = f"accepted from `cellwall policy learn` on {today}"
    texts = ["\n".join([*rule_lines(each, reason), ""]) for each in lesson.proposed]
    tables = [each.table(reason) for each in lesson.proposed]
    return draft_rules(at.path, "\n".join(texts), tables)


def diff(change: PolicyDraft, *, shown: str) -> list[str]:
    """A unified diff, as lines without terminators."""
    before, after = change.before.splitlines(), change.after.splitlines()
    return list(difflib.unified_diff(before, after, shown, shown, lineterm="", n=2))


def write(
    change: PolicyDraft,
    at: PolicyTarget,
    *,
    who: Principal,
    ask: AskApprover | None = None,
) -> bool:
    """Write the rules; False if they apply only after `cellwall policy trust`. `ask` asks for the
    passphrase of the approver, where a key is configured."""
    refuse_agents("a rule")
    require(load_settings(environ=os.environ), who, Permission.POLICY_WRITE)
    trust = PolicyTrust()
    if at.layer is not Layer.PROJECT and not trust.needs_signature:
        write_draft(change)  # (3)
        return True
    before, after = (_offer(change, at, each) for each in (change.before, change.after))
    was_trusted = not change.before or trust.is_trusted(before)
    signer = trust.unlock(ask) if was_trusted else None
    write_draft(change)  # (3)
    if was_trusted:
        trust.trust(after, who=who, signer=signer)  # (4)
    return was_trusted


def _offer(change: PolicyDraft, at: PolicyTarget, text: str) -> Offered:
    path, place = change.path, absolute(at.path)
    name = os.path.basename(path)
    file = parse_policy(text, file=name, name=name, layer=parsed_as(place), folder="/")
    return Offered(path, path, file.sha256, file.rules, place)
