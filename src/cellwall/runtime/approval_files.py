"""Files of the approval queue: written atomically, read only if no other user can have made them.

A file in the folder that is not exactly of this form is refused like an attack.
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
from dataclasses import asdict, replace
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
from cellwall.core.ids import check_id
from cellwall.core.showing import one_line
from cellwall.core.types import Permission, Principal

ANSWER = ".answer"
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_MAX_TEXT = 512
_DAMAGED = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading the JSON of a damaged file raises; an integer may be above any float."""
_NOBODY, _QUEUE = "nobody", "queue"
_FILES_INTERFACE = "cli"
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock` of fcntl(2)."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def is_question(name: str) -> bool:
    """Whether the file name is that of a question."""
    with suppress(BadInput):
        check_question_id(name)
        return True
    return False


def check_question_id(question_id: str) -> None:
    """Raise `BadInput` unless the id is well formed: it becomes a file name."""
    check_id(question_id, what="question id")
    if not question_id.startswith(f"{ID_PREFIX}_"):
        raise BadInput("not the id of a question", code="CW-BAD-ID")


def put_question(folder: int, question: Question) -> int:
    """Write a question, locked before its rename: no reader sees it without a waiting process."""
    draft = f".{question.id}.{secrets.token_hex(8)}"
    held = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(held, _question_json(question))
        os.rename(draft, question.id, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(held)
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    return held


def claim(folder: int, question: Question, answer: Answer) -> bool:
    """Create the answer atomically; False if there is one already."""
    file = claim_held(folder, question, answer)
    if file is not None:
        os.close(file)
    return file is not None


def claim_held(folder: int, question: Question, answer: Answer) -> int | None:
    """`claim` with the file still open and locked: the lock identifies the answering process.

    A record lock of fcntl(2), since the kernel reports its holder, unlike that of flock(2).
    """
    draft = f".{question.id}.{secrets.token_hex(8)}"
    file = os.open(draft, _NEW, 0o600, dir_fd=folder)
    is_made = False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        identity = {"question": question.id, "shown_sha256": question.shown_sha256}
        fields = answer.to_json()
        for name in ("by", "interface", "reason"):  # the reader accepts plain text only
            fields[name] = one_line(str(fields[name]), most=_MAX_TEXT)
        _write(file, {**identity, **fields, "at_s": time.time()})
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
    """Whether a file of any type exists."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_private(name: str, folder: int) -> tuple[int, dict[str, Any]]:
    """An open private file and its JSON object; refuses a file that another user could make."""
    file = os.open(name, READ, dir_fd=folder)
    try:
        status = os.fstat(file)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mode & 0o077 or status.st_size > _MAX_BYTES:
            raise PermissionError(errno.EPERM, "not a private regular file of this user")
        value = json.loads(os.pread(file, _MAX_BYTES, 0))
        if not isinstance(value, dict):
            raise TypeError("not an object")
    except BaseException:
        os.close(file)
        raise
    return file, value


def open_question(name: str, folder: int) -> Question:
    """A question that still waits; raises with the reason if it does not."""
    try:
        return read_question(name, folder)
    except FileNotFoundError:
        raise _closed_error(name, folder) from None
    except OSError as error:
        raise unusable(str(error)) from None


def read_question(name: str, folder: int) -> Question:
    """`open_question`, without mapping an `OSError`."""
    try:
        file, value = _read_private(name, folder)
        try:
            if not is_held(file):
                raise not_waiting(name)
        finally:
            os.close(file)
        question = _question_of(value)
    except _DAMAGED:
        raise unusable("a malformed question") from None
    if question.id != name:
        raise unusable("a question under a wrong name")
    return question


def _question_json(question: Question) -> dict[str, Any]:
    value = asdict(replace(question, principal=replace(question.principal, account=None)))
    scopes = question.principal.scopes
    value["principal"]["scopes"] = None if scopes is None else sorted(scopes)
    return value


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
        principal=Principal(
            principal["name"], principal["interface"], principal["role"], _scopes_of(principal)
        ),
        details=tuple(lists["details"]),
        parts=tuple(lists["parts"]),
        proposals=tuple(Proposal(*pair) for pair in proposals),
        shown=value["shown"],
        asked_s=float(value["asked_s"]),
        deadline_s=float(value["deadline_s"]),
    )


def _scopes_of(principal: Mapping[str, Any]) -> frozenset[Permission] | None:
    scopes = principal["scopes"]
    return None if scopes is None else frozenset(map(Permission, scopes))


def answerer(folder: int, question_id: str) -> int | None:
    """The process that holds the lock of an answer; None: no other process holds it."""
    try:
        file = os.open(question_id + ANSWER, READ, dir_fd=folder)
    except OSError:
        return None
    try:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
    except OSError:
        return None
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK or pid <= 0 else pid


def read_answer(folder: int, question: Question) -> Answer:
    """The answer; raises `CellwallError` for a file that does not answer this question."""
    try:
        answer, value = _read_answer_file(question.id, folder)
        at_s, seen = float(value["at_s"]), (value["question"], value["shown_sha256"])
    except (OSError, *_DAMAGED):
        raise unusable("a malformed answer") from None
    if seen != (question.id, question.shown_sha256):
        raise unusable("an answer to another question")
    if not question.takes(answer.kind, answer.rule):
        raise unusable("an answer that was not offered")
    # Negated, so that NaN counts as late.
    if answer.allows and not at_s <= question.deadline_s:
        raise too_late(question.id)
    return answer


def _read_answer_file(question_id: str, folder: int) -> tuple[Answer, dict[str, Any]]:
    """The answer in a file. The principal is the owner of the file, the channel always the queue.

    Any process of the same user can write the file: it must not pass for another person, or for an
    answer typed at the terminal of the asking process.
    """
    file, value = _read_private(question_id + ANSWER, folder)
    try:
        owner = os.fstat(file).st_uid
    finally:
        os.close(file)
    texts = [value[name] for name in ("by", "interface", "via", "rule", "reason")]
    texts.append(value.get("signature", ""))
    if not all(_is_plain(word) for word in texts):
        raise TypeError("not plain text")
    via, rule, reason, signature = texts[2:]
    kind = AnswerKind(value["answer"])
    if via == _NOBODY and kind is AnswerKind.DENY:
        return denial(reason), value
    if via not in CHANNELS:
        raise ValueError("no channel")
    by = Principal(user_name(owner), _FILES_INTERFACE)
    answer = Answer(kind=kind, by=by, via=_QUEUE, rule=rule, reason=reason, signature=signature)
    return answer, value


def _is_plain(word: object) -> bool:
    return isinstance(word, str) and len(word) <= _MAX_TEXT and word.isprintable()


def user_name(uid: int) -> str:
    """The name in answers and rules; of a user without one the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def is_held(file: int) -> bool:
    """Whether another process holds the lock. A shared probe, so two probes do not collide."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _closed_error(name: str, folder: int) -> BadInput:
    """The error for a question that no longer waits; its answer is kept for a while."""
    try:
        answer, _ = _read_answer_file(name, folder)
    except (OSError, *_DAMAGED):
        return not_waiting(name)
    return too_late(name) if answer.via == _NOBODY else already_answered(answer)


def not_waiting(question_id: str) -> BadInput:
    """The error for a question that does not wait."""
    name = f"question {question_id} does" if question_id else "questions do"
    return BadInput(
        f"{name} not wait for an answer",
        hint="It was answered, or its process ended. See `cellwall approvals list`.",
        code="CW-NO-QUESTION",
    )


def too_late(question_id: str) -> BadInput:
    """The error for an answer after the deadline."""
    return BadInput(
        f"the deadline of {question_id} has passed; it was denied",
        hint="Run it again, or raise approvals.timeout_s.",
        code="CW-APPROVAL-LATE",
    )


def already_answered(answer: Answer) -> BadInput:
    """The error for a second answer."""
    word = "allowed" if answer.allows else "denied"
    return BadInput(
        f"the question has been answered: {word} by {answer.by.name}",
        code="CW-APPROVAL-TAKEN",
    )


def unusable(detail: str) -> CellwallError:
    """The error for a foreign or malformed file in the queue."""
    return CellwallError(
        "the approval queue holds a foreign or malformed file",
        hint="Inspect the folder `approvals` in the state folder, and remove foreign files.",
        code="CW-APPROVALS-UNSAFE",
        detail=detail,
    )
