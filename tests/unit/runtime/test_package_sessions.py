"""Questions about packages: once for each session, bounded, and never for another one (PKG-2)."""

from __future__ import annotations

import json
import os
from functools import partial
from types import SimpleNamespace

import anyio
import pytest

from cellwall.core.approvals import AnswerKind
from cellwall.core.errors import AuditFailed
from cellwall.core.network import EgressContext
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageRules, PackageVerdict, Reason
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.downloads import RegistryDocument
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.pypi import JSON_TYPE
from cellwall.packages.registry.pypi_registry import PypiRegistry
from cellwall.packages.registry.service import RegistryService
from cellwall.runtime import package_sessions
from cellwall.runtime.approvals import ApprovalBroker, CallbackApprover
from cellwall.runtime.package_sessions import PackageSessions
from unit.runtime.questions_for_tests import SESSION, Record, Roles, action_for, said

OTHER_SESSION = "sbx_" + "b" * 26
NAMES = {"reqeusts", "nunpy", "zebra-atlas"}


class Upstream:
    """A registry that has some packages, all old."""

    def __init__(self):
        self.loaded = []

    async def get(self, url, *, accept, max_bytes):
        name = url.rstrip("/").rpartition("/")[2]
        self.loaded.append(name)
        if name not in NAMES and not name.startswith("requests-"):
            return RegistryDocument(404, "text/plain", b"")
        filename = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
        file = {
            "filename": filename,
            "url": f"https://files.pythonhosted.org/packages/{filename}",
            "hashes": {"sha256": "0" * 64},
            "upload-time": "2020-01-01T00:00:00Z",
        }
        return RegistryDocument(
            200, JSON_TYPE, json.dumps({"name": name, "files": [file]}).encode()
        )


async def _ignore(_event):
    pass


class Place:
    """The sessions, the service and the broker of one test; `answer` is the person."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.audit, self.asked = folder, Record(), []
        self.answer = lambda _: said(AnswerKind.ONCE)
        self.rules = PackageRules(without_feed=Verdict.ALLOW)
        self.timeout_s = 60.0
        monkeypatch.chdir(folder)
        (folder / "cellwall").mkdir()
        self.policy = folder / "cellwall" / "policy.toml"

    def write_policy(self, text):
        self.policy.write_text(text)
        self.policy.chmod(0o600)

    def start(self):
        broker = ApprovalBroker(
            audit=self.audit,
            roles=Roles(),
            timeout_s=self.timeout_s,
            channels=("callback",),
            queue=None,
            policy_path=str(self.policy),
        )
        settings = SimpleNamespace(
            policy=SimpleNamespace(files=()), egress=SimpleNamespace(idle_timeout_s=120.0)
        )
        environ = {**os.environ, "XDG_CONFIG_HOME": str(self.folder)}
        self.sessions = PackageSessions(settings, environ, broker, None)
        self.judge = PackageJudge(Feed(str(self.folder)), self.rules)
        self.upstream = Upstream()
        self.service = RegistryService(
            {"pypi.org": PypiRegistry()},
            self.upstream,
            self.judge,
            ArtifactStore(str(self.folder / "artifacts")),
            inspect=lambda *_: None,
        )

    def near(self):
        async def ask(question):
            self.asked.append(question)
            answer = self.answer(question)
            return await answer if hasattr(answer, "__await__") else answer

        return CallbackApprover(ask)

    async def get(self, action, name):
        """The status and the text for a package manager in the session of the action."""
        context = EgressContext(
            action_id=action.id,
            principal="agent",
            interface="sdk",
            session_id=action.session_id or "",
        )
        session = self.sessions.session_of(context, Ecosystem.PYPI, self.judge)
        if session is None:
            return None
        request = RegistryRequest("GET", "pypi.org", f"/simple/{name}/")
        reply = await self.service.respond(request, _ignore, session)
        return reply.status, reply.body.decode()

    def run(self, work):
        async def main():
            self.start()
            return await work()

        return anyio.run(main)


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


def install(session_id=None, **changes):
    return action_for("pip", registries=("pypi",), session_id=session_id, **changes)


@pytest.mark.slow
@pytest.mark.requirement("PKG-2", "POL-8")
def test_an_answer_holds_for_its_session_and_no_other(place):
    async def work():
        first, second, other = install(SESSION), install(SESSION), install(OTHER_SESSION)
        found = []
        async with place.sessions.open(first, near=place.near()):
            found += [await place.get(first, "reqeusts"), await place.get(first, "reqeusts")]
        async with place.sessions.open(second, near=None):
            found.append(await place.get(second, "Reqeusts"))
        async with place.sessions.open(other, near=None):
            found.append(await place.get(other, "reqeusts"))
        place.sessions.end_session(SESSION)
        async with place.sessions.open(first, near=None):
            found.append(await place.get(first, "reqeusts"))
        return [status for status, _ in found]

    assert place.run(work) == [200, 200, 200, 404, 404]
    assert [each.text for each in place.asked] == ["pypi:reqeusts"]
    assert place.audit.told()[0] == ("allow", "once", "me", "callback", "answered")


@pytest.mark.requirement("PKG-2", "PKG-3")
def test_an_answer_holds_for_all_cells_of_one_action(place):
    async def work():
        action, found = install(), []
        async with place.sessions.open(action, near=place.near()):
            for _ in range(2):
                async with place.sessions.open(action, near=None):
                    found.append(await place.get(action, "reqeusts"))
        async with place.sessions.open(action, near=None):
            found.append(await place.get(action, "reqeusts"))
        return [status for status, _ in found]

    assert place.run(work) == [200, 200, 404]
    assert len(place.asked) == 1


@pytest.mark.requirement("PKG-2", "POL-8")
def test_a_refusal_holds_for_the_session_too(place):
    place.answer = lambda _: said(AnswerKind.DENY)

    async def work():
        action = install()
        async with place.sessions.open(action, near=place.near()):
            return [await place.get(action, "reqeusts") for _ in range(3)]

    for status, text in place.run(work):
        assert status == 404
        assert "a person was asked and did not allow it" in text
    assert len(place.asked) == 1


@pytest.mark.requirement("PKG-2", "POL-8")
def test_other_packages_are_served_and_requests_join_while_a_question_waits(place):
    async def work():
        answered, found, action = anyio.Event(), [], install()

        async def wait(_):
            await answered.wait()
            return said(AnswerKind.ONCE)

        place.answer = wait

        async def get():
            found.append((await place.get(action, "reqeusts"))[0])

        async with (
            place.sessions.open(action, near=place.near()),
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(get)
            await anyio.wait_all_tasks_blocked()
            assert (await place.get(action, "zebra-atlas"))[0] == 200
            assert found == []
            answered.set()
        return found

    assert place.run(work) == [200, 200, 200]
    assert len(place.asked) == 1


@pytest.mark.requirement("PKG-2", "POL-8")
@pytest.mark.parametrize(
    "why", ["no channel", "late", "audit failed", "session ended", "action ended"]
)
def test_a_package_is_refused_where_nobody_answers(place, why):
    place.timeout_s = 0.05 if why == "late" else 60.0
    if why == "audit failed":
        place.audit.failure = AuditFailed("the disk is full")
    if why in {"late", "action ended"}:
        place.answer = lambda _: anyio.sleep_forever()

    async def work():
        action = install(SESSION)
        near = None if why == "no channel" else place.near()
        if why != "action ended":
            async with place.sessions.open(action, near=near):
                if why != "session ended":
                    return await place.get(action, "reqeusts")
            place.sessions.end_session(SESSION)
            return await place.get(action, "reqeusts")
        found = []

        async def get():
            found.append(await place.get(action, "reqeusts"))

        async with (
            anyio.create_task_group() as tasks,
            place.sessions.open(action, near=near),
        ):
            tasks.start_soon(get)
            await anyio.wait_all_tasks_blocked()
        return found[0]

    found = place.run(work)
    assert found is None if why == "session ended" else found[0] == 404
    assert found is None or "disk" not in found[1]


@pytest.mark.requirement("PKG-2")
def test_a_flood_of_names_is_no_flood_of_questions(place, monkeypatch):
    monkeypatch.setattr(package_sessions, "MAX_QUESTIONS", 2)
    place.answer = lambda _: said(AnswerKind.DENY)

    async def work():
        action = install()
        async with place.sessions.open(action, near=place.near()):
            for name in ("requests-2", "requests-3", "requests-4", "reqeusts"):
                assert (await place.get(action, name))[0] == 404

    place.run(work)
    assert len(place.asked) == 2


@pytest.mark.requirement("PKG-2")
def test_a_missing_feed_is_asked_about_once_for_all_packages(place):
    place.rules = PackageRules(without_feed=Verdict.ASK)

    async def work():
        action = install()
        async with place.sessions.open(action, near=place.near()):
            return [(await place.get(action, name))[0] for name in ("zebra-atlas", "nunpy")]

    assert place.run(work) == [200, 200]
    assert [each.text for each in place.asked] == ["packages of pypi, any", "pypi:nunpy"]
    assert place.asked[0].proposals == ()


@pytest.mark.requirement("PKG-2")
def test_an_answer_as_a_rule_is_written_and_counts_in_later_sessions(place):
    place.answer = lambda question: said(AnswerKind.RULE, rule=question.proposals[0].rule)

    async def work():
        first, later = install(), install()
        async with place.sessions.open(first, near=place.near()):
            assert (await place.get(first, "reqeusts"))[0] == 200
        async with place.sessions.open(later, near=None):
            return (await place.get(later, "reqeusts"))[0]

    assert place.run(work) == 200
    assert 'rule = "Install(pypi:reqeusts)"' in place.policy.read_text()
    assert "answers" not in place.policy.read_text()


@pytest.mark.requirement("PKG-2")
def test_a_rule_that_asks_is_a_question_and_a_changed_file_counts_at_once(place):
    place.write_policy('[permissions]\nask = ["Install(pypi:zebra-*)"]\n')

    async def work():
        action = install()
        async with place.sessions.open(action, near=place.near()):
            assert (await place.get(action, "zebra-atlas"))[0] == 200
            place.write_policy('[permissions]\ndeny = ["Install(pypi:zebra-*)"]\n# longer\n')
            return await place.get(action, "zebra-atlas")

    status, text = place.run(work)
    assert status == 404
    assert "deny this" in text
    assert place.asked[0].rule == "Install(pypi:zebra-*)"
    assert place.asked[0].proposals == ()


@pytest.mark.requirement("PKG-2", "ERR-1")
def test_a_broken_policy_file_refuses_every_package_and_shows_no_path(place):
    place.write_policy('[permissions]\nallow = ["Install(pypi)"]\n')

    async def work():
        action = install()
        async with place.sessions.open(action, near=place.near()):
            return await place.get(action, "zebra-atlas")

    status, text = place.run(work)
    assert (status, place.asked) == (404, [])
    assert "a policy file that applies here is invalid" in text
    assert str(place.folder) not in text


@pytest.mark.requirement("PKG-2")
def test_the_answers_of_concurrent_sessions_stay_apart(place):
    """Each session decides about the same package while the index of the other one loads."""
    place.answer = lambda q: said(AnswerKind.ONCE if q.session_id == SESSION else AnswerKind.DENY)

    async def work():
        found = {}

        async def one(action):
            async with place.sessions.open(action, near=place.near()):
                for _ in range(3):
                    found.setdefault(action.session_id, []).append(
                        (await place.get(action, "reqeusts"))[0]
                    )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(one, install(SESSION)))
            tasks.start_soon(partial(one, install(OTHER_SESSION)))
        return found

    assert place.run(work) == {SESSION: [200] * 3, OTHER_SESSION: [404] * 3}


@pytest.mark.requirement("PKG-2", "POL-8")
def test_consent_to_an_installation_answers_the_questions_of_its_cell_alone(place):
    async def work():
        first, other = install(), install()
        place.sessions.consent(first.id, Ecosystem.PYPI, ["reqeusts"], said(AnswerKind.ONCE))
        found = []
        async with place.sessions.open(first, near=None):
            found += [await place.get(first, "reqeusts"), await place.get(first, "nunpy")]
        async with place.sessions.open(other, near=None):
            found.append(await place.get(other, "reqeusts"))
        async with place.sessions.open(first, near=None):
            found.append(await place.get(first, "reqeusts"))
        return [status for status, _ in found]

    assert place.run(work) == [200, 404, 404, 404]
    assert place.asked == []


@pytest.mark.requirement("PKG-2", "POL-8")
def test_an_answer_about_a_package_or_another_file_is_none_about_a_file(place):
    def verdict(artifact=""):
        reason = Reason(
            EvidenceStep.ARTIFACT, Verdict.ASK, "bytecode", "bytecode without its source"
        )
        return PackageVerdict(Ecosystem.PYPI, "reqeusts", "1.0", (reason,), artifact=artifact)

    async def work():
        action = install(SESSION)
        async with place.sessions.open(action, near=place.near()):
            assert (await place.get(action, "reqeusts"))[0] == 200
            context = EgressContext(
                action_id=action.id, principal="agent", interface="sdk", session_id=SESSION
            )
            session = place.sessions.session_of(context, Ecosystem.PYPI, place.judge)
            place.answer = lambda _: said(AnswerKind.DENY)
            files = ("a.whl sha256:0", "a.whl sha256:0", "a.whl sha256:1")
            return [await session.ask(verdict(file)) for file in files]

    assert place.run(work) == [False, False, False]
    assert [each.text for each in place.asked] == [
        "pypi:reqeusts",
        "pypi:reqeusts a.whl sha256:0",
        "pypi:reqeusts a.whl sha256:1",
    ]
    # No rule answers the inspection of a file.
    assert [bool(each.proposals) for each in place.asked] == [True, False, False]
