"""Each package of an action is recorded once, and listed in its outcome (PKG-1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import anyio
import pytest

from cellwall.core.errors import AuditFailed
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import PackageUse
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.inventory import InstalledPackage
from cellwall.packages.names import Ecosystem
from cellwall.runtime.package_record import MAX_ACTIONS, MAX_LISTED, MAX_REFUSALS, PackageRecord

WHO = EgressContext(action_id="act_1", principal="user", interface="cli", session_id="sbx_1")
WHEEL = InstalledPackage(
    Ecosystem.PYPI, "zebra", "1.0", "zebra-1.0-py3-none-any.whl", "https://x/", "sha256", "a" * 64, 10, "act_1"
)  # fmt: skip


class Log:
    def __init__(self):
        self.events = []
        self.is_broken = False
        self.gate = None

    async def record(self, event):
        if self.gate is not None:
            await self.gate.wait()
        if self.is_broken:
            raise AuditFailed("the disk is full")
        self.events.append(event)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def record(log):
    return PackageRecord(log)


def note_all(note, subjects):
    """`note` for each subject and context, in one event loop."""

    async def run():
        for subject, who in subjects:
            await note(subject, who)

    anyio.run(run)


def refused(name, text="no"):
    reason = Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unknown", text)
    return PackageVerdict(Ecosystem.PYPI, name, None, (reason,), "real")


def test_an_artifact_is_recorded_once_and_taken_once(record, log):
    note_all(record.note_install, [(WHEEL, WHO)] * 3)
    (event,) = log.events
    assert (event.action_id, event.session_id) == ("act_1", "sbx_1")
    assert event.body == {
        "event": "package-served", "ecosystem": "pypi", "name": "zebra", "version": "1.0",
        "sha256": "a" * 64, "package": "pkg:pypi/zebra@1.0", "file": WHEEL.filename, "size": 10,
    }  # fmt: skip
    assert record.take("act_1") == (PackageUse("pypi", "zebra", "1.0", "sha256", "a" * 64),)
    assert record.take("act_1") == record.take("act_2") == ()


def test_an_artifact_for_several_connections_is_recorded_once(record, log):
    async def run(*, fails):
        gate = log.gate = asyncio.Event()
        tasks = [asyncio.create_task(record.note_install(WHEEL, WHO)) for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        log.is_broken = fails
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def cancel_first():
        log.gate = asyncio.Event()
        first, second = (asyncio.create_task(record.note_install(WHEEL, WHO)) for _ in range(2))
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await asyncio.wait([first])
        log.gate.set()
        await second

    failed = anyio.run(partial(run, fails=True))
    assert {type(each) for each in failed} == {AuditFailed}
    assert log.events == []
    log.is_broken = False
    anyio.run(cancel_first)
    assert len(log.events) == 1
    assert anyio.run(partial(run, fails=False)) == [None] * 4
    assert len(log.events) == 1


def test_a_failed_record_refuses_the_artifact_and_lists_nothing(record, log):
    log.is_broken = True
    with pytest.raises(AuditFailed):
        note_all(record.note_install, [(WHEEL, WHO)])
    assert record.take("act_1") == ()


def test_a_loop_of_refusals_does_not_fill_the_log(record, log):
    names = [name for number in range(2 * MAX_REFUSALS) for name in (f"name-{number}", "name-0")]
    note_all(record.note_refusal, [(refused(name), WHO) for name in names])
    assert len(log.events) == MAX_REFUSALS
    first = log.events[0].body
    assert (first["name"], first["reason"], first["suggestion"]) == ("name-0", "no", "real")
    note_all(record.note_refusal, [(refused("name-0"), replace(WHO, action_id="act_2"))])
    assert log.events[-1].action_id == "act_2"


def test_an_outcome_lists_a_bounded_number_and_the_log_has_all(record, log):
    numbers = range(MAX_LISTED + 5)
    wheels = [replace(WHEEL, name=f"p{each}", filename=f"{each}.whl") for each in numbers]
    note_all(record.note_install, [(each, WHO) for each in wheels])
    assert len(record.take("act_1")) == MAX_LISTED
    assert len(log.events) == MAX_LISTED + 5


@pytest.mark.requirement("PKG-5")
def test_the_packages_of_an_install_are_kept_while_others_come_and_go(record):
    """Else a changed hash would pass, since the install would seem to have got nothing."""

    def others(begin):
        names = [f"other_{number}" for number in range(begin, begin + MAX_ACTIONS + 1)]
        note_all(record.note_install, [(WHEEL, replace(WHO, action_id=name)) for name in names])

    with record.keeping("act_1"):
        note_all(record.note_install, [(WHEEL, WHO)])
        others(0)
        assert record.served("act_1") == (WHEEL,)
        assert record.served("other_0") == ()  # the control: these are bounded
    others(5000)
    assert record.served("act_1") == ()


@pytest.mark.parametrize("use", [PackageUse("pypi", "a", "1", "sha256", "x"), PackageUse("npm", "@a/b", "1", "sha512", "y")])  # fmt: skip
def test_the_json_form_holds_the_whole_value(use):
    assert PackageUse.of(use.to_json()) == use
