"""The files of the queue of questions: written whole, read only if nobody else can have made them.

Whatever lies in the folder and is not exactly of our form is refused, as if it were an attack.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import secrets
import stat
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from cellwall.core.approvals import (
    CHANNELS,
    ID_PREFIX,
    Answer,
    AnswerKind,
    Proposal,
    Question,
    denial,
)
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.showing import one_line
from cellwall.core.types import Principal, check_id

ANSWER = ".answer"
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_MAX_TEXT = 512
_NOBODY, _QUEUE = "nobody", "queue"
_FILES_INTERFACE = "cli"
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock` of fcntl(2)."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def is_question(name: str) -> bool:
    """Whether a file of this name can be one."""
    with suppress(BadInput):
        check_question_id(name)
        return True
    return False


def check_question_id(question_id: str) -> None:
    """`BadInput` unless it has the form of one: it becomes a file's name."""
    check_id(question_id, what="question")
    if not question_id.startswith(f"{ID_PREFIX}_"):
        raise BadInput("this is not the id of a question", code="CW-BAD-ID")


def lay_down(folder: int, question: Question) -> int:
    """Locked before it has its name: under that name it is never without somebody who waits."""
    draft = f".{question.id}.{secrets.token_hex(8)}"
    held = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(held, asdict(question))
        os.rename(draft, question.id, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(held)
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    return held


def claim(folder: int, question: Question, answer: Answer) -> bool:
    """Make the answer in one step, whole; False if there is one already."""
    file = claim_held(folder, question, answer)
    if file is not None:
        os.close(file)
    return file is not None


def claim_held(folder: int, question: Question, answer: Answer) -> int | None:
    """As `claim`, with the file still open and locked: by this lock the kernel names who answers.

    A record lock (fcntl(2)), since unlike one of flock(2) it tells the process that holds it.
    """
    draft = f".{question.id}.{secrets.token_hex(8)}"
    file = os.open(draft, _NEW, 0o600, dir_fd=folder)
    is_made = False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = {"question": question.id, "shown_sha256": question.shown_sha256}
        said = answer.to_json()
        for name in ("by", "interface", "reason"):  # only plain text can be read again
            said[name] = one_line(str(said[name]), most=_MAX_TEXT)
        _write(file, {**told, **said, "at_s": time.time()})
        name = question.id + ANSWER
        try:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            is_made = True
        except FileExistsError:
            return None
        return file
    finally:
        if not is_made:
            os.close(file)
        os.unlink(draft, dir_fd=folder)


def _write(file: int, value: Mapping[str, Any]) -> None:
    data = json.dumps(value).encode("ascii")
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def exists(name: str, folder: int) -> bool:
    """Whatever it is."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_private(name: str, folder: int) -> tuple[int, dict[str, Any]]:
    """A file of ours, still open, and what it says; nothing that another user could have made."""
    file = os.open(name, READ, dir_fd=folder)
    try:
        status = os.fstat(file)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & 0o077 or status.st_size > _MAX_BYTES:
            raise PermissionError(errno.EPERM, "not a private plain file of ours")
        value = json.loads(os.pread(file, _MAX_BYTES, 0))
        if not isinstance(value, dict):
            raise TypeError("not an object")
    except BaseException:
        os.close(file)
        raise
    return file, value


def open_question(name: str, folder: int) -> Question:
    """A question that somebody waits for, or the reason why there is none."""
    try:
        return read_question(name, folder)
    except FileNotFoundError:
        raise _over(name, folder) from None
    except OSError as error:
        raise unusable(str(error)) from None


def read_question(name: str, folder: int) -> Question:
    """As `open_question`; an `OSError` leaves as it is."""
    try:
        file, value = _read_private(name, folder)
        try:
            if not is_held(file):
                raise gone(name)
        finally:
            os.close(file)
        question = _question_of(value)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise unusable("a question that cannot be read") from None
    if question.id != name:
        raise unusable("a question under another name")
    return question


def _question_of(value: Mapping[str, Any]) -> Question:
    texts = ("id", "action_id", "session_id", "tool", "text", "reason", "rule", "call_sha256")
    principal, lists = value["principal"], {name: value[name] for name in ("details", "parts")}
    proposals = [(each["rule"], each["also_allows"]) for each in value["proposals"]]
    words = [value[name] for name in texts] + [value["shown"], *lists["details"], *lists["parts"]]
    words += [principal[name] for name in ("name", "interface", "role")]
    words += [word for pair in proposals for word in pair]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("not text")
    return Question(
        **{name: value[name] for name in texts},
        principal=Principal(principal["name"], principal["interface"], principal["role"]),
        details=tuple(lists["details"]),
        parts=tuple(lists["parts"]),
        proposals=tuple(Proposal(*pair) for pair in proposals),
        shown=value["shown"],
        asked_s=float(value["asked_s"]),
        deadline_s=float(value["deadline_s"]),
    )


def answerer(folder: int, question_id: str) -> int | None:
    """The process that holds the lock of an answer; None: no other process does."""
    try:
        file = os.open(question_id + ANSWER, READ, dir_fd=folder)
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK or pid <= 0 else pid


def read_answer(folder: int, question: Question) -> Answer:
    """What was answered; `CellwallError` for what is not an answer to this very question."""
    try:
        answer, value = _answer_at(question.id, folder)
        at_s, seen = float(value["at_s"]), (value["question"], value["shown_sha256"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise unusable("an answer that cannot be read") from None
    if seen != (question.id, question.shown_sha256):
        raise unusable("an answer to another question")
    if not question.takes(answer.kind, answer.rule):
        raise unusable("an answer that was not offered")
    # Written so that a time that is no number is late, too.
    if answer.allows and not at_s <= question.deadline_s:
        raise late(question.id)
    return answer


def _answer_at(question_id: str, folder: int) -> tuple[Answer, dict[str, Any]]:
    """What a file can say: yes or no. Who made it is the kernel's word, and the way is this file.

    Any process of the same user can write one; it must not pass for another person, or for what
    was typed at the terminal of the one who asks.
    """
    file, value = _read_private(question_id + ANSWER, folder)
    try:
        owner = os.fstat(file).st_uid
    finally:
        os.close(file)
    told = [value[name] for name in ("by", "interface", "via", "rule", "reason")]
    told.append(value.get("signature", ""))
    if not all(_is_plain(word) for word in told):
        raise TypeError("not plain text")
    via, rule, reason, signature = told[2:]
    kind = AnswerKind(value["answer"])
    if via == _NOBODY and kind is AnswerKind.DENY:
        return denial(reason), value
    if via not in CHANNELS:
        raise ValueError("no channel")
    by = Principal(_name_of(owner), _FILES_INTERFACE)
    answer = Answer(kind=kind, by=by, via=_QUEUE, rule=rule, reason=reason, signature=signature)
    return answer, value


def _is_plain(word: object) -> bool:
    return isinstance(word, str) and len(word) <= _MAX_TEXT and word.isprintable()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def is_held(file: int) -> bool:
    """Whether somebody else holds its lock. Asked for shared, so that two who ask do not meet."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _over(name: str, folder: int) -> BadInput:
    """Why it does not wait any more; its answer is left for a while to tell."""
    try:
        answer, _ = _answer_at(name, folder)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return gone(name)
    return late(name) if answer.via == _NOBODY else already(answer)


def gone(question_id: str) -> BadInput:
    """Nobody waits for it."""
    name = f"question {question_id} does" if question_id else "questions do"
    return BadInput(
        f"{name} not wait for an answer",
        hint="It was answered, or who asked is gone. `cellwall approvals list` shows what waits.",
        code="CW-NO-QUESTION",
    )


def late(question_id: str) -> BadInput:
    """Nobody waits for it any more."""
    return BadInput(
        f"the time to answer {question_id} is over; it was denied",
        hint="Run it again, or raise approvals.timeout_s.",
        code="CW-APPROVAL-LATE",
    )


def already(answer: Answer) -> BadInput:
    """There was another answer first."""
    word = "allowed" if answer.allows else "denied"
    return BadInput(
        f"it has been answered: {word} by {answer.by.name}",
        code="CW-APPROVAL-TAKEN",
    )


def unusable(detail: str) -> CellwallError:
    """What lies there is not what we put there."""
    return CellwallError(
        "the queue of questions holds what is not ours",
        hint="Look at the folder approvals of the state folder, and remove what others put there.",
        code="CW-APPROVALS-UNSAFE",
        detail=detail,
    )
