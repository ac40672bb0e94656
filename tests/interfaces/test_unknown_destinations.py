"""Destinations that no rule names, put to a person while the connection waits (NET-9)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cellwall
from cellwall import Status
from cellwall.core.approvals import Question
from cellwall.core.outcomes import EventKind
from conftest import audit_records
from interfaces import prepared_program
from interfaces.test_cli_approvals import outcome_of, waiting_id
from interfaces.test_cli_process import cellwall as typed
from interfaces.test_cli_process import error_code, person
from outside import Outside, internet

ASK = 'unknown = "ask"\n'
REACHED, REFUSED = "hello from outside\n", "403 CW-NOT-ALLOWED"
GET = """
import socket, ssl, urllib.request
def get(url, context=None):
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            return answer.read().decode()
    except OSError as error:
        headers = getattr(error, "headers", None)
        return f"{getattr(error, 'code', '')} {headers and headers.get('X-Cellwall-Refused')}"
def connect(place):
    with socket.create_connection(("127.0.0.1", 3128), 30) as line:
        line.sendall(f"CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n".encode())
        return int(line.recv(4096).split()[1])
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with internet(tmp_path_factory.mktemp("outside")) as world:
        yield world


@pytest.fixture
def config(world: Outside, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", world.ca_file)  # for the proxy's own connections
    rules = 'header_rules = ["opened.example forbid x-admin"]\n'
    return world.config(f'{ASK}{rules}[approvals]\nchannels = ["callback"]\n')


class Asked:
    """A person who answers, and the destinations that the person was asked about."""

    def __init__(self, answer: str = "once") -> None:
        self.answer = answer
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> str:
        self.questions.append(question)
        return self.answer

    @property
    def places(self) -> list[str]:
        return [question.text for question in self.questions]


@pytest.mark.requirement("NET-9", "NET-6")
@pytest.mark.usefixtures("path")
def test_a_connection_of_every_kind_waits_for_one_answer_about_its_destination(world, config):
    plain, sealed = world.web("plain.example"), world.web("sealed.example", tls=True)
    opened = world.web("opened.example", tls=True)
    world.asked.clear()
    looked_up: list[bool] = []
    person = Asked()

    def answer(question: Question) -> str:
        looked_up.append(question.text.partition(":")[0] in world.asked)
        return person(question)

    code = f"""{GET}
from concurrent.futures import ThreadPoolExecutor
blind = ssl._create_unverified_context()
with ThreadPoolExecutor(8) as threads:
    many = list(threads.map(get, ["{plain.url}/a"] * 8))
[*many, get("{sealed.url}/b", blind), get("{opened.url}/c"), get("{opened.url}/d")]"""
    done = cellwall.run_code(code, config=config, on_question=answer)
    assert done.value == [REACHED] * 11, (done.value, done.outcome.findings)
    assert person.places == [plain.rule, sealed.rule, opened.rule]
    assert looked_up == [False] * 3  # no query leaves before the answer
    first = person.questions[0].shown
    assert f"wants to use Connect:\n| {plain.rule}\n" in first
    assert f"by GET, from code of {done.outcome.action_id}" in first
    assert "by CONNECT" in person.questions[1].shown
    assert not person.questions[0].proposals
    records = audit_records()
    asked = [each["body"] for each in records if each["kind"] == "approval"]
    assert [each["verdict"] for each in asked] == ["allow"] * 3
    intents = [each["body"] for each in records if each["kind"] == "intent"]
    assert [each.get("destination") for each in intents] == [None, *person.places]
    rules = {
        each["body"]["rule"]
        for each in audit_records(kind=EventKind.CONNECTION)
        if each["body"]["event"] == "opened"
    }
    assert rules == {"allowed by a person"}


@pytest.mark.requirement("NET-9")
def test_a_no_no_answer_and_no_channel_refuse_it_and_nobody_is_asked_twice(world, config):
    site = world.web("unwanted.example")
    code = f"{GET}[get('{site.url}/a'), get('{site.url}/b')]"
    for answer in ("deny", "perhaps"):
        person = Asked(answer)
        done = cellwall.run_code(code, config=config, on_question=person)
        assert (done.value, person.places) == ([REFUSED] * 2, [site.rule])
        assert done.outcome.findings[0].category == "network"
    assert cellwall.run_code(code, config=config).value == [REFUSED] * 2
    without = world.config(name="without.toml")
    assert cellwall.run_code("1", config=without, on_question=person).value == 1
    named = world.web("named.example")
    refused = cellwall.run_code(
        code, config=without, allow_domains=[named.rule], on_question=Asked()
    )
    assert (refused.value, site.seen) == ([REFUSED] * 2, [])
    assert cellwall.run_code(code, config=config, on_question=Asked()).value == [REACHED] * 2


@pytest.mark.requirement("NET-9", "NET-3", "NET-5")
def test_nobody_is_asked_about_private_addresses_local_names_and_names_with_data(world, config):
    site = world.web("control.example")
    world.names["inside.example"] = ["10.1.2.3"]
    never = [
        "169.254.169.254:80",
        "10.0.0.1:443",
        "[fd00:ec2::254]:80",
        "[::ffff:10.0.0.1]:80",
        "localhost:8080",
        "metadata.google.internal:80",
        "printer.local:80",
        "intranet:443",
        "mzuxe43umvzgk2ltmfzwk43unfxgo3dfonzq.exfil.example:443",
    ]
    person = Asked()
    code = f"{GET}[connect(each) for each in {[*never, 'inside.example:443', site.rule]}]"
    done = cellwall.run_code(code, config=config, on_question=person)
    assert person.places == ["inside.example:443", site.rule]
    # A yes does not make a private address reachable; the control is the last one.
    assert all(status in {400, 403} for status in done.value[:-1]), done.value
    assert done.value[-1] == 200
    assert not set(world.asked) & {each.rpartition(":")[0] for each in never}


@pytest.mark.requirement("NET-9", "POL-8")
@pytest.mark.usefixtures("path")
def test_an_answer_holds_for_the_run_or_for_the_session_and_for_no_other_port(world, config):
    site, other = world.web("scope.example"), world.web("scope.example")
    person = Asked()
    code = f"{GET}[get('{site.url}/a'), get('{site.url}/b')]"
    with cellwall.Sandbox.create(config=config, on_question=person) as sandbox:
        assert sandbox.run_code(code).value == [REACHED] * 2
        assert sandbox.run_code(code).value == [REACHED] * 2
        assert person.places == [site.rule] * 2  # once: asked again in the next run
        # A program of an earlier run may be the one that connects.
        assert "from code in the sandbox, during act_" in person.questions[-1].shown
        person.answer = "session"
        for _ in range(2):
            assert sandbox.run_code(code).value == [REACHED] * 2
        assert person.places == [site.rule] * 3
        person.answer = "deny"
        assert sandbox.run_code(f"{GET}get('{other.url}/')").value == REFUSED
        assert person.places == [site.rule] * 3 + [other.rule]
        assert sandbox.run_code(code).value == [REACHED] * 2
    with cellwall.Sandbox.create(config=config, on_question=person) as another:
        assert another.run_code(code).value == [REFUSED] * 2
    assert person.places[-1] == site.rule


@pytest.mark.requirement("NET-9")
def test_a_connection_and_its_approval_end_with_the_run(world, config):
    """Attack: one yes "until the run ends", and a tunnel or a thread that lives on."""
    site = world.web("tunnel.example")
    request = f"GET /%s HTTP/1.1\\r\\nHost: {site.rule}\\r\\n\\r\\n"
    code = f"""{GET}
import http.client, os, threading, time
line = socket.create_connection(("127.0.0.1", 3128), 30)
line.sendall(b"CONNECT {site.rule} HTTP/1.1\\r\\nHost: {site.rule}\\r\\n\\r\\n")
def fetch(name):
    try:
        line.sendall(b"{request}" % name)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status if answer.read() else 0
    except OSError:
        return 0
later = []
def fetch_later():
    while not os.path.exists("go"):
        time.sleep(0.01)
    later.append(get("{site.url}/later"))
thread = threading.Thread(target=fetch_later)
thread.start()
[int(line.recv(4096)[9:12]), fetch(b"first"), fetch(b"second")]"""
    person = Asked()
    with cellwall.Sandbox.create(config=config, on_question=person) as sandbox:
        assert sandbox.run_code(code).value == [200] * 3  # the control
        assert sandbox.run_code("fetch(b'third')").value == 0
        person.answer = "deny"
        sandbox.files.write("go", "")
        assert sandbox.run_code("thread.join(30)\nlater").value == [REFUSED]
    assert [seen.path for seen in site.seen] == ["/first", "/second"]


@pytest.mark.requirement("NET-9", "POL-9", "POL-4", "RBAC-2")
def test_rules_labels_and_roles_come_before_a_persons_yes(world, config, tmp_path):
    site = world.web("ruled.example")
    code = f"{GET}get('{site.url}/')"
    private = tmp_path / "project"
    private.mkdir()
    person = Asked()
    options: dict[str, Any] = {"workspace": f"{private}:ro", "on_question": person}
    done = cellwall.run_code(code, config=config, **options)
    assert (done.value, person.places) == (REACHED, [site.rule])
    shown = person.questions[0].shown.replace("\n|+", "")  # long lines are folded
    assert "would meet" in shown
    assert str(private) in shown
    assert str(private) not in person.questions[0].reason  # an agent reads the reason (ERR-1)

    text = Path(config).read_text()
    for section in ('[policy]\nrule_of_two = "deny"\n', '[roles]\ndefault = "user"\n'):
        stricter = tmp_path / f"{section[1:5]}.toml"
        stricter.write_text(text + section)
        silent = Asked()
        refused = cellwall.run_code(code, config=str(stricter), **options | {"on_question": silent})
        assert refused.status is Status.OK, refused.outcome.error
        assert (refused.value == REACHED, silent.places) == (False, [])

    rules = tmp_path / "policy.toml"
    rules.write_text('[permissions]\nallow = ["Code"]\ndeny = ["WebFetch(domain:ruled.example)"]\n')
    silent = Asked()
    denied = cellwall.run_code(code, config=config, policy=str(rules), on_question=silent)
    assert (denied.value, silent.places) == (REFUSED, [])
    rules.write_text('[permissions]\nallow = ["Code"]\n')
    assert (
        cellwall.run_code(code, config=config, policy=str(rules), on_question=silent).value
        == REACHED
    )
    assert silent.places == [site.rule]
    assert all(seen.path == "/" for seen in site.seen)


@pytest.mark.requirement("NET-9", "POL-8", "POL-13")
def test_a_person_at_another_terminal_answers_and_an_agents_shell_does_not(world, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", world.ca_file)
    site = world.web("queued.example")
    config = world.config(f"{ASK}[approvals]\ntimeout_s = 60\n", name="queued.toml")
    words = ["run", "--json", "--config", config, "--", "python3", "-c", f"{GET}print(get('{site.url}/'))"]  # fmt: skip
    with prepared_program.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            name = waiting_id(process)
            alone = typed("approvals", "allow", name)  # without a terminal: an agent's shell
            assert alone.returncode != 0, error_code(alone)
            assert site.seen == []
            assert person("approvals", "allow", name).returncode == 0
            outcome = outcome_of(process)
        finally:
            process.kill()
    assert (outcome["status"], outcome["stdout"]) == ("ok", f"{REACHED}\n")
    assert [seen.path for seen in site.seen] == ["/"]


@pytest.mark.requirement("NET-9", "LIM-1")
def test_a_flood_of_destinations_is_no_flood_of_questions(world, config):
    person = Asked("deny")
    code = f"""{GET}
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(100) as threads:
    found = list(threads.map(connect, [f"host-{{n}}.example:443" for n in range(100)]))
(set(found), 1 + 1)"""
    done = cellwall.run_code(code, config=config, on_question=person)
    assert done.status is Status.OK
    assert done.text == "({403}, 2)"
    assert 0 < len(person.places) <= 20
    with ThreadPoolExecutor(2) as threads:  # the proxy serves the next run as before
        assert threads.submit(cellwall.run_code, "2", config=config).result(30).value == 2
