"""Questions of the policy, put to the person by the client's elicitation (POL-8).

What an agent wrote stands behind bars in the question, as everywhere, and the whole of it is
indented: a client that renders Markdown shows it as it is, and no word of the agent's begins where
ours do. Only an explicit choice allows. A client that cannot ask, a decline, a cancel, an answer
that was not offered or is not understood, and no answer in time are a no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, ElicitResult

from cellwall.core.approvals import NOBODY, Answer, AnswerKind, Question
from cellwall.core.showing import fit

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from cellwall.core.types import Principal

CHANNEL = "elicitation"
_FIELD = "answer"
_ONCE = "allow once"
_SESSION = "allow exactly this until the session ends"
_DENY = "deny"
_COLUMNS = 72  # what dialogs show without wrapping a line, which would begin at their left edge
_INDENT = "    "

Put = Callable[[ElicitRequestFormParams], Awaitable[object]]
"""Shows a form to the person and gives back what came; whatever it raises is a no."""


def can_ask(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client says that it can show a form; a bare `elicitation: {}` means forms."""
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)


class Elicitation:
    """Keeps `ApproverPort`: the person at the client of one call."""

    name = CHANNEL

    def __init__(self, who: Principal, put: Put | None) -> None:
        self._who = who
        self._put = put
        """None: this client cannot ask anybody."""

    async def ask(self, question: Question) -> Answer:
        if self._put is None:
            return _no("the client cannot put questions to a person (elicitation)")
        try:
            reply = await self._put(form_of(question))
        except Exception:  # noqa: BLE001  # whatever broke at the client, nobody has said yes
            return _no("the client could not put the question to a person")
        return answer_of(question, reply, who=self._who)


def form_of(question: Question) -> ElicitRequestFormParams:
    """What the client shows."""
    shown = "\n".join(_INDENT + line for line in fit(question.shown, _COLUMNS).splitlines())
    message = (
        f"Cellwall asks you ({question.id}). Words behind a bar (|) are those of others, the "
        f"agent's among them, and may lie.\n\n{shown}\n\nAllow it?"
    )
    choices = [_ONCE, *([_SESSION] if question.takes(AnswerKind.SESSION) else []), _DENY]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            _FIELD: {"type": "string", "title": "Your answer", "enum": choices},
        },
        "required": [_FIELD],
    }
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def answer_of(question: Question, reply: object, *, who: Principal) -> Answer:
    """Strictly: of all that can come back, two answers allow."""
    if not isinstance(reply, ElicitResult):
        return _no("the client gave no answer that could be understood")
    if reply.action != "accept":
        word = "declined" if reply.action == "decline" else "closed"
        return Answer(kind=AnswerKind.DENY, by=who, via=CHANNEL, reason=f"the question was {word}")
    match reply.content:
        case {"answer": str(chosen), **others} if not others:
            pass
        case _:
            return _no("the answer is none that was offered")
    if chosen == _ONCE:
        return Answer(kind=AnswerKind.ONCE, by=who, via=CHANNEL)
    if chosen == _SESSION and question.takes(AnswerKind.SESSION):
        return Answer(kind=AnswerKind.SESSION, by=who, via=CHANNEL)
    if chosen == _DENY:
        return Answer(kind=AnswerKind.DENY, by=who, via=CHANNEL)
    return _no("the answer is none that was offered")


def _no(reason: str) -> Answer:
    return Answer(kind=AnswerKind.DENY, by=NOBODY, via=CHANNEL, reason=reason)
