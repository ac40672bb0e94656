"""Where learnt rules belong, the change to that file, and the writing after a person's yes.

(1) find the file, and the layer that its rules are in;
(2) draft the change; what a person is shown is what is written, or nothing is;
(3) write the draft, if the file is still the one it was made from;
(4) trust a project's file again that was trusted before, or that is new: the person has seen all
    that is new in it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.roles import Permission
from cellwall.core.types import Principal
from cellwall.policy.lessons import Lesson, Place, rule_lines
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.permissions import require
from cellwall.runtime.policy_file import Draft, draft_rules, write_draft
from cellwall.runtime.policy_places import PROJECT_FILES, is_there, project_files, user_policy
from cellwall.runtime.policy_trust import Offered, PolicyTrust

__all__ = ["Draft", "PolicyTarget", "diff", "draft", "target", "write"]


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """A policy file that rules can be added to."""

    path: str
    layer: Layer
    folder: str = ""
    """That of the project."""

    @property
    def place(self) -> Place:
        return Place(self.layer, self.folder)


def target(
    *, is_user: bool, policies: Sequence[str], cwd: str, environ: Mapping[str, str]
) -> PolicyTarget:
    """(1) The named file, the user's own, or that of the project here."""
    if is_user and policies:
        raise BadInput("--user and --policy exclude each other", code="CW-USAGE")
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
        # Attack: a project whose policy is a link to a file of the user's.
        raise BadInput(
            "the project's policy file, or its folder, is a link",
            hint="Put a plain file in its place, or use --user.",
            code="CW-POLICY-THERE",
        )
    return PolicyTarget(path, Layer.PROJECT, folder)


def draft(lesson: Lesson, at: PolicyTarget) -> Draft:
    """(2)"""
    today = datetime.now(UTC).date().isoformat()
    reason = f"accepted from `cellwall policy learn` on {today}"
    texts = ["\n".join([*rule_lines(each, reason), ""]) for each in lesson.proposed]
    tables = [each.table(reason) for each in lesson.proposed]
    return draft_rules(at.path, "\n".join(texts), tables)


def diff(change: Draft, *, shown: str) -> list[str]:
    """In the unified form, without ends of lines."""
    before, after = change.before.splitlines(), change.after.splitlines()
    return list(difflib.unified_diff(before, after, shown, shown, lineterm="", n=2))


def write(change: Draft, at: PolicyTarget, *, who: Principal) -> bool:
    """Whether the new rules count at once; otherwise the file waits for `cellwall policy trust`."""
    refuse_agents("a rule")
    require(load_settings(environ=os.environ), who, Permission.POLICY_WRITE)
    if at.layer is not Layer.PROJECT:
        write_draft(change)  # (3)
        return True
    trust = PolicyTrust()
    known = {(each.path, each.sha256) for each in trust.entries()}
    before, after = (_offered(change.path, each) for each in (change.before, change.after))
    was_trusted = not change.before or (before.path, before.sha256) in known
    write_draft(change)  # (3)
    if was_trusted:
        trust.trust(after, who=who)  # (4)
    return was_trusted


def _offered(path: str, text: str) -> Offered:
    name = os.path.basename(path)
    file = parse_policy(text, file=name, name=name, layer=Layer.PROJECT, folder="/")
    return Offered(path, path, file.sha256, file.rules)
