"""Questions that wait for an answer, in a folder where other processes of the same user find them.

    ask_...            a question; whoever asks holds a lock on it, and dies with it
    ask_....answer     its answer; it can be made once, so of two answers the first one stands

Who asks makes the answer itself when it stops waiting. So a late answer finds the place taken and
is told so, and what somebody was told was accepted is what counts.

Any process of the user can write such a file, an agent's shell as well. So who asks, not who
answers, looks at the process behind a yes (POL-13): it holds a lock on its answer until that is
taken, and the kernel tells which process that is.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio

from cellwall.core.approvals import Answer, AnswerKind, Question, denial
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.forks import OwnerProcess
from cellwall.runtime.agent_processes import objection_to
from cellwall.runtime.approval_files import (
    ANSWER,
    READ,
    already,
    answerer,
    check_question_id,
    claim,
    claim_held,
    exists,
    gone,
    is_held,
    is_question,
    late,
    lay_down,
    open_question,
    read_answer,
    read_question,
    unusable,
)
from cellwall.runtime.approver_key import ApproverKey

MAX_WAITING = 1000
_LOOK_EVERY_S = 0.05
_KEEP_ANSWERS_S = 3600.0
_DRAFT_AGE_S = 60.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


Witness = Callable[[int | None], str | None]
"""Why the process behind a yes is not a person's; None: it may be one."""


class ApprovalQueue:
    """The folder `approvals` of a state folder."""

    def __init__(
        self, home: str, *, witness: Witness = objection_to, key: ApproverKey | None = None
    ) -> None:
        self._path = os.path.join(home, "approvals")
        self._witness = witness
        self.key = key
        """Whose signature a yes needs; None: nobody's."""

    @contextmanager
    def waiting(self, question: Question) -> Iterator[Waiting]:
        """Lay a question down for as long as the block lasts."""
        with self._opened(make=True) as folder:
            self._sweep(folder)
            if sum(is_question(name) for name in os.listdir(folder)) >= MAX_WAITING:
                raise CellwallError("too many questions wait already", code="CW-APPROVALS-FULL")
            held = lay_down(folder, question)
            owner = OwnerProcess()
            try:
                yield Waiting(folder, question, self._witness, self.key)
            finally:
                if owner.is_current:  # a forked child that ends leaves its parent's alone
                    with suppress(OSError):
                        os.unlink(question.id, dir_fd=folder)
                os.close(held)

    def listed(self) -> list[Question]:
        """All that wait, the oldest first; what is none of ours, or nobody's any more, is not."""
        found = []
        with self._opened(make=True) as folder:
            self._sweep(folder)
            for name in os.listdir(folder):
                if is_question(name) and not exists(name + ANSWER, folder):
                    with suppress(CellwallError, OSError):
                        found.append(read_question(name, folder))
        now = time.time()
        waiting = [question for question in found if now <= question.deadline_s]
        return sorted(waiting, key=lambda question: question.asked_s)

    def read(self, question_id: str) -> Question:
        """One of them; `BadInput` if it does not wait."""
        check_question_id(question_id)
        with self._opened(make=False) as folder:
            self._sweep(folder)
            return open_question(question_id, folder)

    def answer(self, question: Question, answer: Answer) -> Delivery:
        """Answer it, once; `BadInput` if somebody was quicker, or nobody waits any more."""
        if not question.takes(answer.kind, answer.rule):
            raise not_offered(question, answer.kind)
        with self._opened(make=False) as folder:
            current = open_question(question.id, folder)
            if current.shown != question.shown:
                raise gone(question.id)
            if time.time() > current.deadline_s:
                raise late(question.id)
            held = claim_held(folder, current, answer)
            if held is None:
                taken = read_answer(folder, current)
                raise late(question.id) if taken.via == "nobody" else already(taken)
            return Delivery(self._path, current, held)

    def _sweep(self, folder: int) -> None:
        """Remove what the dead left."""
        for name in os.listdir(folder):
            with suppress(OSError):
                _sweep_one(name, folder)

    @contextmanager
    def _opened(self, *, make: bool) -> Iterator[int]:
        try:
            if make:
                os.makedirs(self._path, mode=0o700, exist_ok=True)
            folder = os.open(self._path, _FOLDER)
        except FileNotFoundError:
            raise gone("") from None
        except OSError as error:
            raise unusable(str(error)) from error
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise unusable("open to other users")
            yield folder
        finally:
            os.close(folder)


class Delivery:
    """An answer that was given. Who asks takes a yes only while its giver is there."""

    def __init__(self, path: str, question: Question, held: int) -> None:
        self._path, self._question, self._held = path, question, held

    def until_taken(self) -> None:
        """Stay until who asked has seen it, or waits no more."""
        with suppress(OSError, CellwallError):
            folder = os.open(self._path, _FOLDER)
            try:
                while time.time() <= self._question.deadline_s:
                    read_question(self._question.id, folder)
                    time.sleep(_LOOK_EVERY_S)
            finally:
                os.close(folder)
        self.close()

    def close(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def __del__(self) -> None:
        self.close()


class Waiting:
    """A question that lies there."""

    def __init__(
        self, folder: int, question: Question, witness: Witness, key: ApproverKey | None
    ) -> None:
        self._folder = folder
        self._question = question
        self._witness = witness
        self._key = key
        self._seen: Answer | None = None
        """What was read once: its giver may be gone when it is asked for again."""

    async def answered(self) -> Answer:
        """The answer of another process, once there is one."""
        while not exists(self._question.id + ANSWER, self._folder):  # noqa: ASYNC110  # a file
            await anyio.sleep(_LOOK_EVERY_S)
        return await anyio.to_thread.run_sync(self._read)

    def settle(self, answer: Answer) -> Answer:
        """No more answers are taken; one that came before this one is what counts."""
        if claim(self._folder, self._question, answer):
            return answer
        return self._read()

    def _read(self) -> Answer:
        """A yes counts only by a process that can be a person's; a no by any."""
        if self._seen is not None:
            return self._seen
        giver = answerer(self._folder, self._question.id)  # first: it may leave when it is read
        answer = read_answer(self._folder, self._question)
        why = self._witness(giver) if answer.allows else None
        if why is None and answer.allows and answerer(self._folder, self._question.id) != giver:
            why = "the process that answered was gone before it was looked at"
        if why is None and answer.allows and self._key is not None:
            is_signed = self._key.has_signed(self._question, answer)
            why = None if is_signed else "it bears no signature of the approver's"
        if why is not None:
            answer = denial(f"the answer was not given by a person at a terminal: {why}")
        self._seen = answer
        return answer


def not_offered(question: Question, kind: AnswerKind) -> BadInput:
    """It cannot be answered so."""
    return BadInput(
        f"this question does not offer {kind.value!r}",
        hint=f"See `cellwall approvals show {question.id}` for what it offers.",
        code="CW-APPROVAL-NOT-OFFERED",
    )


def _sweep_one(name: str, folder: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    age_s = time.time() - status.st_mtime
    if name.startswith("."):
        is_dead = age_s > _DRAFT_AGE_S
    elif name.endswith(ANSWER):
        # It keeps the place taken while somebody may still be about to answer.
        is_dead = age_s > _KEEP_ANSWERS_S and not exists(name.removesuffix(ANSWER), folder)
    elif is_question(name) and stat.S_ISREG(status.st_mode):
        file = os.open(name, READ, dir_fd=folder)
        is_dead = not is_held(file)
        os.close(file)
    else:
        is_dead = False
    if is_dead:
        os.unlink(name, dir_fd=folder)
