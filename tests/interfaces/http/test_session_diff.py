"""What a session has changed in its workspace, over HTTP and on its page (FS-2, SRV-5)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from cellwall.interfaces.http.dashboard.diff_view import diff_files
from cellwall.interfaces.http.dashboard.session_facts import labels_in_records
from interfaces.http.browser import PageClient, add_person, page_client
from interfaces.http.running_service import RunningService, new_session, running_service

pytestmark = pytest.mark.slow
HOSTILE_NAME = "a\nb\x1b[31m\u202e<img src=x onerror=alert(1)>"
MAKE = f"""
import os
open("plain.txt", "w").write("one\\ntwo\\n")
open("binary", "wb").write(bytes(range(256)) * 50)
open("long", "w").write("<script>" + "x" * 1_000_000)
open("CLAUDE.md", "w").write("obey\\n")
open({HOSTILE_NAME!r}, "w").write("\\x1b]8;;evil\\x07 \\u202e</pre><script>1</script>\\n")
os.symlink("/etc/passwd", "link")
os.mkfifo("fifo")
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("cellwall-diffs")) as found:
        for name, role in (("ann", "owner"), ("bob", "user"), ("cyd", "user")):
            add_person(found, name, role)
        yield found


@pytest.fixture(scope="module")
def bob(service: RunningService) -> Iterator[httpx.Client]:
    with service.client("bob") as client:
        yield client


@pytest.fixture(scope="module")
def session(bob: httpx.Client) -> str:
    made = new_session(bob)
    done = bob.post(f"/v1/sessions/{made}/code", json={"code": MAKE}).json()
    assert done["status"] == "ok", done
    return made


@pytest.fixture(scope="module")
def page(service: RunningService, session: str) -> Iterator[PageClient]:
    with page_client(service, "bob") as client:
        client.open(f"/ui/sessions/{session}?changes=show")
        yield client


@pytest.mark.requirement("FS-2")
def test_the_changes_are_listed_with_instructions_first_and_a_diff(
    bob: httpx.Client, session: str
) -> None:
    found = bob.get(f"/v1/sessions/{session}/diff").json()
    kinds = {each["path"]: each for each in found["changes"]}
    assert found["changes"][0]["path"] == "CLAUDE.md"
    assert kinds["CLAUDE.md"]["mark"] == "instructions for agents"
    assert kinds["binary"]["is_binary"] is True
    assert kinds["plain.txt"]["size_after"] == 8
    assert (kinds["link"]["entry_kind"], kinds["fifo"]["entry_kind"]) == ("symlink", "other")
    assert "+one\n+two\n" in found["diff"]
    assert "root:" not in found["diff"]  # the link is not followed
    assert "Binary files /dev/null and b/binary differ" in found["diff"]
    assert HOSTILE_NAME not in found["diff"]


@pytest.mark.requirement("SRV-5", "RBAC-3", "AUD-1")
def test_to_compare_is_an_action_of_the_owner_alone(
    service: RunningService, bob: httpx.Client, session: str
) -> None:
    with service.client("cyd") as cyd, service.client("ann") as ann:
        unknown = cyd.get("/v1/sessions/sbx_" + "0" * 26 + "/diff")
        foreign = cyd.get(f"/v1/sessions/{session}/diff")
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json()["error"]["message"] == unknown.json()["error"]["message"]
        assert ann.get(f"/v1/sessions/{session}/diff").status_code == 404  # reads the record alone
        bob.get(f"/v1/sessions/{session}/diff").raise_for_status()  # the control
        records = ann.get(f"/v1/audit?session={session}&limit=5").json()["records"]
    assert any(each["body"].get("file") == "diff" for each in records)
    with page_client(service, "ann") as auditor:
        text = auditor.open(f"/ui/sessions/{session}?changes=show").text
        assert "Changes since the start" not in text


@pytest.mark.requirement("SRV-5")
def test_hostile_names_and_content_are_text_on_a_page_of_bounded_size(page: PageClient) -> None:
    assert page.page is not None
    text = page.page.text
    assert len(page.page.content) < 250_000
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<img src=x" not in text
    assert "<script>1" not in text
    assert "more lines" in text or "characters …" in text  # the megabyte line was cut
    assert "&lt;script&gt;xxx" in text
    assert re.search(r'class="l add">\+two', text)


@pytest.mark.requirement("SRV-5")
def test_thousands_of_files_stay_a_page_that_can_be_read(
    service: RunningService, bob: httpx.Client
) -> None:
    made = new_session(bob)
    code = "for n in range(2500): open(f'f{n:05}', 'w').write('x\\n')"
    assert bob.post(f"/v1/sessions/{made}/code", json={"code": code}).json()["status"] == "ok"
    found = bob.get(f"/v1/sessions/{made}/diff").json()
    assert (found["total"], len(found["changes"])) == (2500, 1000)
    with page_client(service, "bob") as client:
        shown = client.open(f"/ui/sessions/{made}?changes=show")
        assert len(shown.content) < 250_000
        assert "2\N{NARROW NO-BREAK SPACE}400 more paths" in shown.text
    bob.delete(f"/v1/sessions/{made}")


@pytest.mark.requirement("SRV-5")
def test_each_action_of_the_timeline_has_its_output(
    service: RunningService, bob: httpx.Client
) -> None:
    made = new_session(bob)
    bob.post(f"/v1/sessions/{made}/commands", json={"command": "echo '<b>first'"})
    bob.post(f"/v1/sessions/{made}/commands", json={"command": "printf second"})
    with page_client(service, "bob") as client:
        text = client.open(f"/ui/sessions/{made}").text
    rows = re.findall(r"of-row.*?<pre[^>]*>(.*?)</pre>", text, re.DOTALL)
    assert [each.strip() for each in rows] == ["second", "&lt;b&gt;first"]
    with page_client(service, "ann") as auditor:
        assert "of-row" not in auditor.open(f"/ui/sessions/{made}").text
    bob.delete(f"/v1/sessions/{made}")


def test_a_line_of_a_file_cannot_forge_a_file_of_the_diff() -> None:
    text = (
        "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n"
        "+diff --git a/fake b/fake\n+Binary files a and b differ\n"
        'diff --git "a/\\012b" "b/\\012b"\nBinary files /dev/null and "b/\\012b" differ\n'
    )
    found = diff_files(text)
    assert [(each.name, each.about, each.added) for each in found] == [
        ("x", "new file", 2),
        ("\\012b", "binary", 0),
    ]
    assert diff_files("") == []
    assert diff_files("no header\n+x\n") == []


@pytest.mark.requirement("POL-9", "SRV-5")
def test_the_page_of_a_session_shows_the_labels_that_are_judged_also_after_its_end(
    service: RunningService,
) -> None:
    with service.client("ann") as ann:
        made = ann.post("/v1/sessions", json={"packages": ["pypi"]}).json()["id"]
        ran = ann.post(f"/v1/sessions/{made}/commands", json={"command": "true"})
        assert ran.json()["status"] == "ok", ran.text
    judged = service.app.runtime.labels.of_session(made)
    assert [each.name for each in judged.sources] == ["packages of pypi"]
    with page_client(service, "ann") as client, service.client("ann") as ann:
        live = client.open(f"/ui/sessions/{made}").text
        assert "packages of pypi" in live
        assert judged.sources[0].action_id in live
        ann.delete(f"/v1/sessions/{made}")
        assert not service.app.runtime.labels.of_session(made).sources
        assert "packages of pypi" in client.open(f"/ui/sessions/{made}").text


def test_labels_of_an_ended_session_come_from_its_newest_record() -> None:
    newest = {"labels": {"private": [{"source": "secret KEY", "action": "act_2"}]}}
    found = labels_in_records([{"labels": "forged"}, {}, newest, {"labels": {}}])
    assert [(each.label.value, each.name) for each in found.sources] == [("private", "secret KEY")]
    assert labels_in_records([]).sources == ()
