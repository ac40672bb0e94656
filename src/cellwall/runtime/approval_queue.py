"""Open questions, in a folder where other processes of the same user find them.

    ask_...            a question; the asking process holds a lock on it for its whole life
    ask_....answer     its answer; created once, so of two answers the first one counts

The asking process creates the answer itself when it stops waiting. A late answer then finds the
file taken and is refused, so an answer that was accepted is the one that counts.

Any process of the user can write such a file, an agent's shell as well. So the asking process, not
the answering one, inspects the process behind an approval (POL-13): that process holds a lock on
its answer until the answer is taken, and the kernel reports the holder.

With `approvals.key` an approval also needs a passphrase, whatever processes run as the user: the
asking process checks a signature (see `approver_key`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio

from cellwall.audit.files import closing_fd
from cellwall.core.approvals import Answer, AnswerKind, Question, denial
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.forks import OwnerProcess
from cellwall.core.keys import SigningKey
from cellwall.runtime.agent_processes import objection_to
from cellwall.runtime.approval_files import (
    ANSWER,
    READ,
    already_answered,
    answerer,
    check_question_id,
    claim,
    claim_held,
    exists,
    is_held,
    is_question,
    not_waiting,
    open_question,
    put_question,
    read_answer,
    read_question,
    too_late,
    unusable,
)
from cellwall.runtime.approver_key import ApproverKey, encode

MAX_WAITING = 1000
_LOOK_EVERY_S = 0.05
_KEEP_ANSWERS_S = 3600.0
_DRAFT_AGE_S = 60.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DOMAIN = b"cellwall approval 1"


ProcessCheck = Callable[[int | None], str | None]
"""Why the process behind an approval is not a person's; None: no objection."""


class ApprovalQueue:
    """The folder `approvals` of a state folder."""

    def __init__(
        self,
        home: str,
        *,
        check_process: ProcessCheck = objection_to,
        key: ApproverKey | None = None,
    ) -> None:
        self._path = os.path.join(home, "approvals")
        self._check_process = check_process
        self.key = key
        """The key that must sign an approval; None: no signature needed."""

    @contextmanager
    def waiting(self, question: Question) -> Iterator[OpenQuestion]:
        """Publish a question for as long as the block lasts."""
        with self._open_folder(make=True) as folder:
            self._sweep(folder)
            if sum(is_question(name) for name in os.listdir(folder)) >= MAX_WAITING:
                raise CellwallError("too many questions wait already", code="CW-APPROVALS-FULL")
            held = put_question(folder, question)
            owner = OwnerProcess()
            try:
                yield OpenQuestion(folder, question, self._check_process, self.key)
            finally:
                if owner.is_current:  # a forked child must not remove its parent's question
                    with suppress(OSError):
                        os.unlink(question.id, dir_fd=folder)
                os.close(held)

    def list_waiting(self) -> list[Question]:
        """All open questions, the oldest first; foreign files and abandoned ones are skipped."""
        found = []
        with self._open_folder(make=True) as folder:
            self._sweep(folder)
            for name in os.listdir(folder):
                if is_question(name) and not exists(name + ANSWER, folder):
                    with suppress(CellwallError, OSError):
                        found.append(read_question(name, folder))
        now = time.time()
        waiting = [question for question in found if now <= question.deadline_s]
        return sorted(waiting, key=lambda question: question.asked_s)

    def read(self, question_id: str) -> Question:
        """One open question; raises `BadInput` if it does not wait."""
        check_question_id(question_id)
        with self._open_folder(make=False) as folder:
            self._sweep(folder)
            return open_question(question_id, folder)

    def answer(self, question: Question, answer: Answer) -> GivenAnswer:
        """Answer a question once; raises `BadInput` if it is answered or no longer waits."""
        if not question.takes(answer.kind, answer.rule):
            raise not_offered(question, answer.kind)
        with self._open_folder(make=False) as folder:
            current = open_question(question.id, folder)
            if current.shown != question.shown:
                raise not_waiting(question.id)
            if time.time() > current.deadline_s:
                raise too_late(question.id)
            held = claim_held(folder, current, answer)
            if held is None:
                taken = read_answer(folder, current)
                raise too_late(question.id) if taken.via == "nobody" else already_answered(taken)
            return GivenAnswer(self._path, current, held)

    def _sweep(self, folder: int) -> None:
        """Remove files of dead processes."""
        for name in os.listdir(folder):
            with suppress(OSError):
                _sweep_one(name, folder)

    @contextmanager
    def _open_folder(self, *, make: bool) -> Iterator[int]:
        try:
            if make:
                os.makedirs(self._path, mode=0o700, exist_ok=True)
            folder = os.open(self._path, _FOLDER)
        except FileNotFoundError:
            raise not_waiting("") from None
        except OSError as error:
            raise unusable(str(error)) from error
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise unusable("open to other users")
            yield folder
        finally:
            os.close(folder)


class GivenAnswer:
    """A given answer. An approval is accepted only while the answering process lives."""

    def __init__(self, path: str, question: Question, held: int) -> None:
        self._path, self._question, self._held = path, question, held

    def until_taken(self) -> None:
        """Block until the asking process has read the answer, or waits no more."""
        with (
            suppress(OSError, CellwallError),
            closing_fd(os.open(self._path, _FOLDER)) as folder,
        ):
            while time.time() <= self._question.deadline_s:
                read_question(self._question.id, folder)
                time.sleep(_LOOK_EVERY_S)
        self.close()

    def close(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def __del__(self) -> None:
        self.close()


class OpenQuestion:
    """A published question."""

    def __init__(
        self, folder: int, question: Question, check_process: ProcessCheck, key: ApproverKey | None
    ) -> None:
        self._folder = folder
        self._question = question
        self._check_process = check_process
        self._key = key
        self._seen: Answer | None = None
        """The answer once read: the answering process may be gone at a second call."""

    async def answered(self) -> Answer:
        """Wait for the answer of another process."""
        while not exists(self._question.id + ANSWER, self._folder):  # noqa: ASYNC110  # a file
            await anyio.sleep(_LOOK_EVERY_S)
        return await anyio.to_thread.run_sync(self._read)

    def settle(self, answer: Answer) -> Answer:
        """Close the question with this answer; an earlier answer takes precedence."""
        if claim(self._folder, self._question, answer):
            return answer
        return self._read()

    def _read(self) -> Answer:
        """An approval counts only from a process that can be a person's; a denial from any."""
        if self._seen is not None:
            return self._seen
        # Before the answer is read: the answering process may end once it is.
        pid = answerer(self._folder, self._question.id)
        answer = read_answer(self._folder, self._question)
        why = self._check_process(pid) if answer.allows else None
        if why is None and answer.allows and answerer(self._folder, self._question.id) != pid:
            why = "the answering process ended before it was inspected"
        if why is None and answer.allows and self._key is not None:
            signed = signed_text(self._question, answer)
            is_signed = self._key.has_signed(signed, answer.signature)
            why = None if is_signed else "the approver's signature is missing or wrong"
        if why is not None:
            answer = denial(f"the answer was not given by a person at a terminal: {why}")
        self._seen = answer
        return answer


def not_offered(question: Question, kind: AnswerKind) -> BadInput:
    """The error for an answer that the question does not offer."""
    return BadInput(
        f"this question does not offer {kind.value!r}",
        hint=f"See `cellwall approvals show {question.id}` for what it offers.",
        code="CW-APPROVAL-NOT-OFFERED",
    )


def chosen_rule(question: Question, text: str) -> str:
    """A rule that the question proposes, by number or text."""
    rules = [proposal.rule for proposal in question.proposals]
    if text in rules:
        return text
    if text.isascii() and text.isdigit() and 0 < int(text[:4]) <= len(rules):
        return rules[int(text[:4]) - 1]
    # Only a rule that was shown with its side effects; other rules belong in the policy file.
    raise BadInput(
        "this rule was not proposed" if rules else "no rule is proposed for this",
        hint="Name one by its number: 1" + (f" to {len(rules)}." if len(rules) > 1 else ".")
        if rules
        else "Allow it once, or write a rule into the policy file by hand.",
        code="CW-APPROVAL-NOT-OFFERED",
    )


def _sweep_one(name: str, folder: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    age_s = time.time() - status.st_mtime
    if name.startswith("."):
        is_dead = age_s > _DRAFT_AGE_S
    elif name.endswith(ANSWER):
        # The file stays, so that a late answer still finds it taken.
        is_dead = age_s > _KEEP_ANSWERS_S and not exists(name.removesuffix(ANSWER), folder)
    elif is_question(name) and stat.S_ISREG(status.st_mode):
        file = os.open(name, READ, dir_fd=folder)
        is_dead = not is_held(file)
        os.close(file)
    else:
        is_dead = False
    if is_dead:
        os.unlink(name, dir_fd=folder)


def sign_answer(key: SigningKey, question: Question, answer: Answer) -> str:
    """The signature of the approver under an answer."""
    return encode(key.sign(signed_text(question, answer)))


def signed_text(question: Question, answer: Answer) -> bytes:
    """The signed text. No part holds a NUL: an id, digests, a word, a printable rule."""
    parts = (question.id, question.shown_sha256, question.call_sha256, answer.kind.value)
    return b"\0".join((_DOMAIN, *(part.encode() for part in parts), answer.rule.encode()))
