"""Labels of information flow for a person (POL-9): to read, to clear after a review, to explain."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.labels import LabelSet, LabelSource
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Action, Permission, Principal, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.rule_of_two import object_to, unconsented
from cellwall.runtime.action_labels import LabelRules
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approver_key import AskPassphrase, approver_key
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.label_files import LabelFolder, read_labels
from cellwall.runtime.label_scopes import agent_context, real_directory
from cellwall.runtime.label_store import recorded_labels
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.session_labels import flow_mode
from cellwall.runtime.tool_places import places_of

_VERDICTS = {"ask": Verdict.ASK, "deny": Verdict.DENY, "show": Verdict.ALLOW}


class LabelReview:
    """The labels of one state folder."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)
        self._folder = LabelFolder(self._home)

    def directories(self) -> Mapping[str, tuple[LabelSource, ...]]:
        """The directories of the host with untrusted content."""
        return self._folder.tainted()

    def session(self, session_id: str) -> LabelSet:
        """The labels of a live session, of one whose files are kept, or of the session of an agent
        that has a hook."""
        conversation = self._folder.path_of(agent_context(session_id))
        if os.path.lexists(conversation):
            return LabelSet(tuple(each for each, _ in read_labels(conversation).values()))
        if os.path.isdir(os.path.join(self._home, "workspaces", check_id(session_id))):
            return recorded_labels(self._home, session_id)
        raise BadInput(
            f"there is no session {session_id}",
            hint="`cellwall ps` lists live sessions. Labels end with a session whose files are not "
            "kept.",
            code="CW-NO-SESSION",
        )

    def clear(
        self, directory: str, *, who: Principal, ask: AskPassphrase | None = None
    ) -> tuple[LabelSource, ...]:
        """A person has read the files: what sessions left in this directory counts as trusted.
        `ask` asks for the passphrase of the approver, where a key is configured (POL-13)."""
        refuse_agents("trust in the files of a directory")
        require(self._settings, who, Permission.POLICY_WRITE)
        place = real_directory(directory)
        if not self._folder.labelled_at(place):
            around = "one around it has" if self._folder.content_in(place) else "it has none"
            raise BadInput(
                f"the directory has no label of its own: {around}",
                hint="`cellwall policy labels` lists the directories with labels.",
            )
        key = approver_key(self._settings)
        if key is not None:
            command = "cellwall policy labels --clear DIR"
            key.ask_for("trust in the files of a directory", ask, command=command)
        known = {"labels": LabelSet(self._folder.content_in(place)).to_json()}
        change = AdminChange(EventKind.CONFIG, "clear labels of", place, dict(known))
        with change.recorded_in(self._home, self._settings, who):
            return self._folder.clear(place)

    def explain(
        self, call: ToolCall, *, session_id: str | None, is_inside: bool
    ) -> tuple[LabelSet, Decision | None]:
        """The labels that the call of an agent brings, and the decision about them in a session."""
        policy, egress = self._settings.policy, self._settings.egress
        rules = LabelRules(policy.dangerously_trusted_domains, egress.allow_domains)
        operation = UseTool(call.tool, call.input, call.cwd, is_inside=is_inside)
        action = Action(principal=Principal("", "hook"), operation=operation)
        content = self._folder.content_in_all(places_of(operation).read)
        brought = rules.labels_of(action, directory=None, server=LabelSet()).joined(content)
        held = LabelSet() if session_id is None else self.session(session_id)
        needed = unconsented(held, brought.sources, admitted=(), named=())
        if not needed:
            return LabelSet(brought.sources), None
        verdict = _VERDICTS[flow_mode(self._settings)]
        decision = object_to(held, brought.sources, verdict=verdict, action_id=action.id)
        return LabelSet(brought.sources), decision
