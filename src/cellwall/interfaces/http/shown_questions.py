"""Which open questions of the policy a user of the service can see (POL-8)."""

from __future__ import annotations

from cellwall.core.approvals import Question
from cellwall.core.types import REMOTE_INTERFACES, Permission
from cellwall.interfaces.http.callers import Caller, may
from cellwall.interfaces.http.service import Service


def shown_questions(service: Service, caller: Caller) -> list[Question]:
    """The open questions that the caller can see, the oldest first."""
    return [each for each in service.board.waiting() if is_shown(service, caller, each)]


def is_shown(service: Service, caller: Caller, question: Question) -> bool:
    """The caller's own, those of shared sandboxes, and all for one who may read the record."""
    asker = question.principal
    # A user of this machine may have the name of an account; that does not make them one person.
    is_own = asker.name == caller.identity.name and asker.interface in REMOTE_INTERFACES
    is_shared = service.sandboxes.is_shared(caller.identity, question.session_id)
    return is_own or is_shared or may(service, caller, Permission.AUDIT_READ)
