"""The queue: one answer stands, the dead are swept, and nothing forged is believed (POL-8)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.core.approvals import Answer, AnswerKind, denial
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.core.types import Permission, Principal
from cellwall.runtime import approval_queue, approver_key
from cellwall.runtime.approval_queue import ApprovalQueue, sign_answer, signed_text
from cellwall.runtime.approver_key import ApproverKey
from cellwall.runtime.home import local_principal
from unit.runtime.questions_for_tests import SESSION, anybody, broker_for, question_for, said

ONCE, FOR_SESSION, DENY = AnswerKind.ONCE, AnswerKind.SESSION, AnswerKind.DENY
OWNER = local_principal("cli")
"""Who an answer in a file is from, whatever it says."""


@pytest.fixture
def queue(state_home: str) -> ApprovalQueue:
    return ApprovalQueue(state_home, check_process=anybody)


@pytest.fixture
def folder(state_home: str) -> Path:
    return Path(state_home, "approvals")


def code_of(call: object, *arguments: object) -> str:
    with pytest.raises(CellwallError) as refused:
        call(*arguments)  # type: ignore[operator]  # a function
    return refused.value.code


def test_a_question_is_found_as_it_was_asked_and_gone_afterwards(
    queue: ApprovalQueue, folder: Path
) -> None:
    question = question_for("git", "push", session_id=SESSION)
    with queue.waiting(question):
        assert queue.list_waiting() == [question]
        assert queue.read(question.id) == question
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / question.id).stat().st_mode & 0o777 == 0o600
    assert queue.list_waiting() == []
    assert code_of(queue.read, question.id) == "CW-NO-QUESTION"


@pytest.mark.parametrize("scopes", [None, frozenset(), frozenset({Permission.FILES_READ})])
def test_a_question_of_a_scoped_token_keeps_its_scopes(
    queue: ApprovalQueue, scopes: frozenset[Permission] | None
) -> None:
    asker = Principal("ann", "mcp-http", "user", scopes)
    question = replace(question_for("git", "push"), principal=asker)
    with queue.waiting(question):
        assert queue.read(question.id) == question


def test_an_answer_reaches_who_asked(queue: ApprovalQueue) -> None:
    question = question_for("git", "push")

    async def ask() -> object:
        with queue.waiting(question) as waiting:
            queue.answer(question, said(AnswerKind.RULE, "Bash(git push)"))
            return await waiting.answered()

    assert anyio.run(ask) == said(AnswerKind.RULE, "Bash(git push)", by=OWNER)


@pytest.mark.requirement("POL-8")
def test_of_many_answers_at_once_exactly_one_stands(queue: ApprovalQueue) -> None:
    question = question_for()
    results: list[object] = []
    barrier = threading.Barrier(20)

    def answer(number: int) -> None:
        kind = ONCE if number % 2 else DENY
        barrier.wait()
        try:
            queue.answer(question, said(kind))
            results.append(kind)
        except BadInput as error:
            results.append(error.code)

    with queue.waiting(question) as waiting:
        threads = [threading.Thread(target=answer, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [each for each in results if isinstance(each, AnswerKind)]
        assert len(won) == 1
        assert results.count("CW-APPROVAL-TAKEN") == 19
        assert waiting.settle(denial("late")).kind is won[0]


@pytest.mark.requirement("POL-8")
def test_an_answer_after_the_time_is_refused_and_told(queue: ApprovalQueue) -> None:
    question = question_for()
    with queue.waiting(question) as waiting:
        assert waiting.settle(denial("nobody answered")).reason == "nobody answered"
        assert code_of(queue.answer, question, said(ONCE)) == "CW-APPROVAL-LATE"
        assert queue.list_waiting() == []
    assert code_of(queue.answer, question, said(ONCE)) == "CW-APPROVAL-LATE"
    assert code_of(queue.read, question.id) == "CW-APPROVAL-LATE"


def test_a_stopped_asker_takes_no_answer_after_its_deadline(queue: ApprovalQueue) -> None:
    question = question_for(timeout_s=-1.0)
    with queue.waiting(question) as waiting:
        assert queue.list_waiting() == []
        assert code_of(queue.answer, question, said(ONCE)) == "CW-APPROVAL-LATE"
        # An answerer that does not look at the clock: who asks does.
        approval_queue.claim(waiting._folder, question, said(ONCE))
        assert code_of(waiting.settle, denial("x")) == "CW-APPROVAL-LATE"


def test_what_is_not_offered_cannot_be_answered(queue: ApprovalQueue) -> None:
    question = question_for("git", "push")  # without a session
    with queue.waiting(question):
        for answer in (
            said(AnswerKind.SESSION),
            said(AnswerKind.RULE, "Bash(*)"),
            said(AnswerKind.RULE),
            said(ONCE, "Bash(git push)"),
        ):
            assert code_of(queue.answer, question, answer) == "CW-APPROVAL-NOT-OFFERED"


ASKER = """
import sys, time
from cellwall.runtime.approval_queue import ApprovalQueue
from unit.runtime.questions_for_tests import question_for
question = question_for("git", "push")
with ApprovalQueue(sys.argv[1]).waiting(question):
    print(question.id, flush=True)
    time.sleep(60)
"""


@pytest.mark.requirement("POL-8")
@pytest.mark.slow
def test_the_question_of_a_killed_asker_is_swept(
    queue: ApprovalQueue, folder: Path, state_home: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKER, state_home],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        question = queue.read(name)
        assert [each.id for each in queue.list_waiting()] == [name]
        process.send_signal(signal.SIGKILL)
    assert code_of(queue.answer, question, said(ONCE)) == "CW-NO-QUESTION"
    assert queue.list_waiting() == []
    assert list(folder.iterdir()) == []


def test_a_hundred_questions_at_once_get_each_their_own_answer(queue: ApprovalQueue) -> None:
    questions = [question_for("echo", str(number)) for number in range(100)]
    answers: dict[str, object] = {}

    async def ask(number: int) -> None:
        with queue.waiting(questions[number]) as waiting:
            answers[questions[number].id] = (await waiting.answered()).kind

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, number)
            await anyio.sleep(0)
            assert len(queue.list_waiting()) == 100
            for number, question in enumerate(questions):
                queue.answer(question, said(ONCE if number % 3 else DENY))

    anyio.run(main)
    expected = {each.id: ONCE if n % 3 else DENY for n, each in enumerate(questions)}
    assert answers == expected


def test_there_is_a_bound_on_how_many_wait(
    queue: ApprovalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_queue, "MAX_WAITING", 1)
    with queue.waiting(question_for()):
        assert code_of(queue.waiting(question_for()).__enter__) == "CW-APPROVALS-FULL"


# Forged files


@pytest.fixture
def forged(folder: Path) -> Path:
    """A question with everything right but that nobody asked it."""
    question = question_for()
    folder.mkdir(mode=0o700)
    path = folder / question.id
    path.write_text(json.dumps({"id": question.id}))
    path.chmod(0o600)
    return path


def test_a_question_that_nobody_holds_is_nobodys(queue: ApprovalQueue, forged: Path) -> None:
    assert queue.list_waiting() == []
    assert not forged.exists()


def held(path: Path) -> subprocess.Popen[str]:
    """Somebody of the same user holds a lock on it."""
    code = "import fcntl,sys,time; f=open(sys.argv[1]); fcntl.flock(f, 2); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b"not json", b"\xff", b"[" * 100_000, b'{"id": 3}'),
        *(b'{"id": "ask_other"}', b"x" * (2 << 20)),
    ],
)
def test_a_forged_question_is_not_listed_and_cannot_be_read(
    content: bytes, queue: ApprovalQueue, forged: Path
) -> None:
    forged.write_bytes(content)
    with held(forged) as process:
        assert queue.list_waiting() == []
        assert code_of(queue.read, forged.name) == "CW-APPROVALS-UNSAFE"
        process.kill()


def test_a_question_under_another_name_or_mode_is_refused(
    queue: ApprovalQueue, folder: Path
) -> None:
    question, other = question_for(), question_for()
    with queue.waiting(question):
        (folder / other.id).write_bytes((folder / question.id).read_bytes())
        (folder / other.id).chmod(0o600)
        with held(folder / other.id) as process:
            assert code_of(queue.read, other.id) == "CW-APPROVALS-UNSAFE"
            process.kill()
        (folder / question.id).chmod(0o644)
        assert code_of(queue.read, question.id) == "CW-APPROVALS-UNSAFE"
        assert queue.list_waiting() == []


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_plain_file_is_refused(
    kind: str, queue: ApprovalQueue, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(mode=0o700)
    path = folder / question_for().id
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text("{}")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir()
    assert queue.list_waiting() == []
    assert code_of(queue.read, path.name) == "CW-APPROVALS-UNSAFE"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_files_of_other_users_are_refused(queue: ApprovalQueue, folder: Path) -> None:
    question = question_for()
    with queue.waiting(question) as waiting:
        os.chown(folder / question.id, 12345, 12345)
        assert queue.list_waiting() == []
        os.chown(folder / question.id, 0, 0)
        answer = folder / f"{question.id}.answer"
        queue.answer(question, said(ONCE))
        os.chown(answer, 12345, 12345)
        assert code_of(waiting.settle, denial("x")) == "CW-APPROVALS-UNSAFE"
    os.chown(folder, 12345, 12345)
    assert code_of(queue.list_waiting) == "CW-APPROVALS-UNSAFE"


def test_a_folder_open_to_others_or_elsewhere_is_refused(
    queue: ApprovalQueue, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)
    assert code_of(queue.list_waiting) == "CW-APPROVALS-UNSAFE"
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert code_of(queue.list_waiting) == "CW-APPROVALS-UNSAFE"


GOOD = {"answer": "once", "by": "me", "interface": "cli", "via": "queue", "rule": "", "reason": ""}


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "always"}, {"answer": "session"}, {"answer": "rule", "rule": "Bash(*)"},
        {"question": "ask_other"}, {"shown_sha256": "0" * 64}, {"by": 3}, {"via": "magic"},
        {"via": "nobody"}, {"at_s": "soon"}, {"at_s": time.time() + 10_000}, {"rule": "x" * 1000},
        {"at_s": None}, {"answer": None}, {"at_s": float("nan")}, {"by": "ceo\nall fine"},
        {"reason": "\x1b[31m"}, {"interface": "\u202e"},
    ],
)  # fmt: skip
def test_a_forged_answer_is_not_believed(
    changes: dict[str, object], queue: ApprovalQueue, folder: Path
) -> None:
    question = question_for("git", "push")
    told = {"question": question.id, "shown_sha256": question.shown_sha256, "at_s": time.time()}
    with queue.waiting(question) as waiting:
        path = folder / f"{question.id}.answer"
        path.write_text(json.dumps({**GOOD, **told, **changes}))
        path.chmod(0o600)
        assert code_of(waiting.settle, denial("x")) in {"CW-APPROVALS-UNSAFE", "CW-APPROVAL-LATE"}
        path.write_text(json.dumps({**GOOD, **told}))
        assert waiting.settle(denial("x")).kind is ONCE


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("via", ["terminal", "callback", "queue"])
def test_an_answer_in_a_file_is_from_its_owner_and_from_nowhere_nearer(
    via: str, queue: ApprovalQueue, folder: Path
) -> None:
    question = question_for("git", "push")
    told = {"question": question.id, "shown_sha256": question.shown_sha256, "at_s": time.time()}
    forged = {**GOOD, **told, "by": "ceo", "interface": "sdk", "via": via}
    with queue.waiting(question) as waiting:
        path = folder / f"{question.id}.answer"
        path.write_text(json.dumps(forged))
        path.chmod(0o600)
        assert waiting.settle(denial("x")) == said(ONCE, by=OWNER, via="queue")
        with pytest.raises(CellwallError, match=f"allowed by {OWNER.name}"):
            queue.answer(question, said(ONCE))
    with pytest.raises(CellwallError, match=f"allowed by {OWNER.name}"):
        queue.read(question.id)


def test_what_a_program_says_of_its_answer_can_be_read_by_others(queue: ApprovalQueue) -> None:
    question = question_for()
    with queue.waiting(question) as waiting:
        waiting.settle(denial("two\nlines " + "x" * 1000))
        assert code_of(queue.answer, question, said(ONCE)) == "CW-APPROVAL-LATE"


@pytest.mark.parametrize(
    "name", ["../x", "sbx_" + "a" * 26, "ask_", "", "ask_\0", "ask_" + "/" * 26]
)
def test_an_id_is_never_a_path(name: str, queue: ApprovalQueue) -> None:
    assert code_of(queue.read, name) == "CW-BAD-ID"


def test_what_is_old_is_tidied_away(queue: ApprovalQueue, folder: Path) -> None:
    question = question_for()
    with queue.waiting(question) as waiting:
        waiting.settle(denial("x"))
    draft = folder / ".ask_draft"
    draft.touch()
    assert sorted(each.name for each in folder.iterdir()) == [draft.name, f"{question.id}.answer"]
    queue.list_waiting()
    assert len(list(folder.iterdir())) == 2
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    queue.list_waiting()
    assert list(folder.iterdir()) == []


pytestmark = pytest.mark.requirement("POL-13")

PASSPHRASE = b"correct horse battery"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approver_key, "_MEMORY_KIB", 64)
    monkeypatch.setattr(approver_key, "_PASSES", 1)


@pytest.fixture
def key() -> ApproverKey:
    return ApproverKey.make(bytearray(PASSPHRASE))


def taken(queue: ApprovalQueue, answer: Answer, **question: object) -> Answer:
    asked = question_for(**question)

    async def ask() -> Answer:
        with queue.waiting(asked) as waiting:
            signed = answer
            if answer.signature == "sign" and queue.key is not None:
                made = sign_answer(queue.key.unlock(bytearray(PASSPHRASE)), asked, answer)
                signed = replace(answer, signature=made)
            queue.answer(asked, signed)
            return await waiting.answered()

    return anyio.run(ask)


def test_a_signed_yes_counts_and_another_does_not(state_home: str, key: ApproverKey) -> None:
    queue = ApprovalQueue(state_home, check_process=anybody, key=key)
    assert taken(queue, replace(said(ONCE), signature="sign")).allows
    for signature in ("", "AAAA", "A" * 86, "not base64 !"):
        refused = taken(queue, replace(said(ONCE), signature=signature))
        assert (refused.allows, "the approver's signature is missing" in refused.reason) == (
            False,
            True,
        )
    assert not taken(queue, said(DENY)).reason  # a no needs none
    without = ApprovalQueue(state_home, check_process=anybody)
    assert taken(without, said(ONCE)).allows  # the control


def test_a_signature_holds_for_one_question_one_answer_and_one_key(key: ApproverKey) -> None:
    first, second = question_for(session_id=SESSION), question_for("ls", session_id=SESSION)
    made = sign_answer(key.unlock(bytearray(PASSPHRASE)), first, said(ONCE))
    assert key.has_signed(signed_text(first, said(ONCE)), made)
    assert not key.has_signed(signed_text(second, said(ONCE)), made)
    assert not key.has_signed(signed_text(first, said(FOR_SESSION)), made)
    other = ApproverKey.make(bytearray(PASSPHRASE))
    assert not other.has_signed(signed_text(first, said(ONCE)), made)
    assert ApproverKey.parse(str(key)) == key


def test_a_wrong_or_short_passphrase_and_a_broken_key_are_refused(key: ApproverKey) -> None:
    with pytest.raises(BadInput, match="wrong passphrase"):
        key.unlock(bytearray(b"another passphrase"))
    with pytest.raises(BadInput, match="fewer than 12"):
        ApproverKey.make(bytearray(b"short"))
    for text in ("x", str(key)[:-1], f"{key}x", str(key).replace(".", "")):
        with pytest.raises(ConfigError):
            ApproverKey.parse(text)


def test_the_prompt_of_the_run_is_not_asked_where_a_key_is_set(
    state_home: str, key: ApproverKey
) -> None:
    class Terminal:
        name = "terminal"

        async def ask(self, _: object) -> Answer:
            return said(ONCE, via="terminal")

    question = question_for(timeout_s=0.2)
    plain = broker_for(home=state_home, timeout_s=0.2)
    assert anyio.run(lambda: plain.ask(question, near=Terminal())).allows
    signed = replace(plain, queue=ApprovalQueue(state_home, key=key))
    asked = replace(question, id=question_for().id, deadline_s=time.time() + 0.2)
    assert not anyio.run(lambda: signed.ask(asked, near=Terminal())).allows
