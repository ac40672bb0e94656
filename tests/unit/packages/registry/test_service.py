"""Requests of package managers and their answers (PKG-1, PKG-2)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from cellwall.core.errors import EgressRefused
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageRules, PackageVerdict, Reason
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, Affected
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.downloads import RegistryDocument
from cellwall.packages.registry.judged_index import Refusal
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.npm_registry import NpmRegistry
from cellwall.packages.registry.pypi import JSON_TYPE
from cellwall.packages.registry.pypi_registry import PypiRegistry
from cellwall.packages.registry.service import Failure, RegistryService
from cellwall.packages.registry.shared_work import SessionBounds

OLD = "2020-01-01T00:00:00.000000Z"
WHEEL = b"wheel bytes"
FILE = "/packages/zebra_atlas-1.0-py3-none-any.whl"
TARBALL = b"tarball bytes"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def pypi_index(*versions):
    files = [
        {
            "filename": f"zebra_atlas-{version}-py3-none-any.whl",
            "url": f"https://files.pythonhosted.org/packages/zebra_atlas-{version}-py3-none-any.whl",
            "hashes": {"sha256": sha256(WHEEL)},
            "upload-time": uploaded,
        }
        for version, uploaded in versions
    ]
    return json.dumps({"name": "zebra-atlas", "files": files}).encode()


def packument(*versions):
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()
    entries = {
        version: {
            "name": "@zoo/zebra",
            "version": version,
            "dist": {
                "tarball": f"https://registry.npmjs.org/@zoo/zebra/-/zebra-{version}.tgz",
                "integrity": integrity,
            },
        }
        for version, _ in versions
    }
    document = {
        "name": "@zoo/zebra",
        "dist-tags": {"latest": versions[-1][0]},
        "versions": entries,
        "time": dict(versions),
    }
    return json.dumps(document).encode()


class Upstream:
    """The registry of these tests: documents by URL; counts what was asked."""

    def __init__(self, documents):
        self.documents = documents
        self.asked = []

    async def get(self, url, *, accept, max_bytes):
        self.asked.append(url)
        kind, body = self.documents.get(url, ("", None))
        return (
            RegistryDocument(404, "text/plain", b"")
            if body is None
            else RegistryDocument(200, kind, body)
        )

    async def download(self, url):
        self.asked.append(url)
        if url not in self.documents:
            raise EgressRefused("the registry answered 404")
        for byte in self.documents[url][1]:
            yield bytes([byte])


@pytest.fixture
def registry(tmp_path):
    soon = datetime.now(UTC) - timedelta(hours=3)
    young = soon.isoformat()
    upstream = Upstream(
        {
            "https://pypi.org/simple/zebra-atlas/": (JSON_TYPE, pypi_index(("1.0", OLD), ("2.0", young))),
            "https://files.pythonhosted.org" + FILE: ("", WHEEL),
            "https://registry.npmjs.org/@zoo%2Fzebra": ("application/json", packument(("1.0.0", OLD), ("2.0.0", young))),
            "https://registry.npmjs.org/@zoo/zebra/-/zebra-1.0.0.tgz": ("", TARBALL),
        }
    )  # fmt: skip
    return Fixture(upstream, tmp_path)


class Fixture:
    def __init__(self, upstream, folder):
        self.upstream = upstream
        self.refusals = []
        self.failures = []
        self.inspected = []
        self.served = []
        self.verdict = None
        pypi = PypiRegistry()
        self.service = RegistryService(
            {"pypi.org": pypi, "files.pythonhosted.org": pypi, "registry.npmjs.org": NpmRegistry()},
            upstream,
            PackageJudge(Feed(str(folder)), PackageRules(without_feed=Verdict.ALLOW)),
            ArtifactStore(str(folder / "artifacts")),
            inspect=self._inspect,
        )

    def _inspect(self, artifact, name, stream):
        self.inspected.append((artifact.filename, name, stream.read()))
        return self.verdict

    async def _report(self, report):
        if isinstance(report, Refusal):
            self.refusals.append(report.text)
        elif isinstance(report, Failure):
            self.failures.append(report.error.code)
        else:
            self.served.append((report.name, report.artifact.version, report.size))

    def ask(self, path, host="pypi.org", method="GET", accept=JSON_TYPE, scheme="https"):
        request = RegistryRequest(method, host, path, accept, scheme=scheme)
        reply = anyio.run(self.service.respond, request, self._report)
        if reply.stream is None:
            return reply.status, reply.body
        with reply.stream:
            return reply.status, reply.stream.read()


@pytest.mark.slow
@pytest.mark.requirement("PKG-1", "PKG-4")
@pytest.mark.parametrize(
    ("scheme", "origin"), [("https", "https://files.pythonhosted.org"), ("http", "")]
)
def test_a_page_without_tls_names_the_judged_files_on_its_own_host(registry, scheme, origin):
    status, body = registry.ask("/simple/zebra-atlas/", scheme=scheme)
    assert status == 200
    assert [each["url"] for each in json.loads(body)["files"]] == [origin + FILE]
    assert registry.ask(FILE, scheme=scheme) == (200, WHEEL)
    young = FILE.replace("1.0", "2.0")
    assert registry.ask(young, scheme=scheme)[0] == 404
    assert registry.served == [("zebra-atlas", "1.0", len(WHEEL))]


@pytest.mark.requirement("PKG-1")
def test_an_index_shows_only_versions_that_are_old_enough(registry):
    status, body = registry.ask("/simple/Zebra_Atlas/")
    assert status == 200
    assert json.loads(body)["versions"] == ["1.0"]
    status, page = registry.ask("/simple/zebra-atlas/", accept="text/html")
    assert b"zebra_atlas-1.0" in page
    assert b"zebra_atlas-2.0" not in page


@pytest.mark.slow
@pytest.mark.requirement("PKG-1")
def test_an_npm_index_shows_the_older_version_as_the_latest(registry):
    status, body = registry.ask(
        "/@zoo%2fzebra", host="registry.npmjs.org", accept="application/json"
    )
    document = json.loads(body)
    assert (status, document["dist-tags"], list(document["versions"])) == (
        200,
        {"latest": "1.0.0"},
        ["1.0.0"],
    )


@pytest.mark.requirement("PKG-1")
def test_an_artifact_is_inspected_before_it_is_served_and_downloaded_once(registry):
    for _ in range(2):
        assert registry.ask(FILE, host="files.pythonhosted.org") == (200, WHEEL)
    assert registry.inspected == [("zebra_atlas-1.0-py3-none-any.whl", "zebra-atlas", WHEEL)]
    assert len([url for url in registry.upstream.asked if url.endswith(".whl")]) == 1
    assert registry.served == [("zebra-atlas", "1.0", len(WHEEL))] * 2


def test_an_npm_tarball_is_served_under_its_hash(registry):
    assert registry.ask("/@zoo/zebra/-/zebra-1.0.0.tgz", host="registry.npmjs.org") == (
        200,
        TARBALL,
    )


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/packages/zebra_atlas-2.0-py3-none-any.whl", "files.pythonhosted.org"),
        ("/elsewhere/zebra_atlas-1.0-py3-none-any.whl", "files.pythonhosted.org"),
        ("/packages/other-1.0-py3-none-any.whl", "files.pythonhosted.org"),
        ("/@zoo/zebra/-/zebra-2.0.0.tgz", "registry.npmjs.org"),
        ("/@zoo/zebra/-/../../other/-/other-1.0.0.tgz", "registry.npmjs.org"),
        ("/simple/", "pypi.org"),
        ("/simple/../admin", "pypi.org"),
        ("/simple/a/b/", "pypi.org"),
        ("/", "registry.npmjs.org"),
        ("/-/v1/search?text=x", "registry.npmjs.org"),
        ("/-/npm/v1/tokens", "registry.npmjs.org"),
    ],
)
def test_what_the_filtered_index_does_not_name_is_not_there(registry, path, host):
    assert registry.ask(path, host=host)[0] == 404
    assert not any(url.endswith((".whl", ".tgz")) for url in registry.upstream.asked)


def test_a_file_with_another_hash_is_not_served_and_not_kept(registry):
    registry.upstream.documents["https://files.pythonhosted.org" + FILE] = ("", WHEEL + b"!")
    for _ in range(2):
        status, body = registry.ask(FILE, host="files.pythonhosted.org")
        assert status == 403
        assert b"does not have the hash" in body
    assert registry.inspected == []


def test_an_artifact_that_the_inspection_refuses_is_not_served(registry):
    reason = Reason(EvidenceStep.VERSION, Verdict.DENY, "pth-code", "a .pth file runs code")
    registry.verdict = PackageVerdict(PypiRegistry.ecosystem, "zebra-atlas", "1.0", (reason,))
    assert registry.ask(FILE, host="files.pythonhosted.org")[0] == 404
    assert registry.refusals == ["a .pth file runs code"]


class Person:
    """Implements `RegistrySession`: the answers about files, by their hashes."""

    def __init__(self, registry, *answers):
        self.judge = registry.service._judge
        self.answers, self.asked = list(answers), []

    async def ask(self, verdict):
        self.asked.append(verdict.artifact)
        return self.answers.pop(0)


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_a_person_is_asked_about_the_very_file_and_the_answer_is_of_one_session(registry):
    reason = Reason(EvidenceStep.ARTIFACT, Verdict.ASK, "bytecode", "bytecode without its source")
    registry.verdict = PackageVerdict(PypiRegistry.ecosystem, "zebra-atlas", "1.0", (reason,))
    request = RegistryRequest("GET", "files.pythonhosted.org", FILE, "")
    yes, no, nobody = (Person(registry, answer) for answer in (True, False, None))

    async def ask(person):
        reply = await registry.service.respond(request, registry._report, person)
        if reply.stream is not None:
            reply.stream.close()
        return reply.status

    async def ask_all():
        return [await ask(each) for each in (yes, no, nobody)]

    assert anyio.run(ask_all) == [200, 404, 404]
    file = f"zebra_atlas-1.0-py3-none-any.whl sha256:{sha256(WHEEL)}"
    assert yes.asked == no.asked == nobody.asked == [file]
    asked = "bytecode without its source; a person was asked and did not allow it"
    assert registry.refusals == [asked, "bytecode without its source"]
    assert registry.served == [("zebra-atlas", "1.0", len(WHEEL))]
    # A cell that asks in a loop has the file inspected once.
    assert len(registry.inspected) == 1


@pytest.mark.requirement("PKG-1")
def test_no_answer_lifts_a_denial_of_the_inspection(registry):
    reason = Reason(EvidenceStep.ARTIFACT, Verdict.DENY, "pth-code", "a .pth file runs code")
    registry.verdict = PackageVerdict(PypiRegistry.ecosystem, "zebra-atlas", "1.0", (reason,))
    person = Person(registry, True, True)
    request = RegistryRequest("GET", "files.pythonhosted.org", FILE, "")
    for _ in range(2):
        reply = anyio.run(registry.service.respond, request, registry._report, person)
        assert reply.status == 404
    assert person.asked == []


def test_a_refused_file_that_changed_in_the_store_is_inspected_again(registry, tmp_path):
    reason = Reason(EvidenceStep.ARTIFACT, Verdict.DENY, "pth-code", "a .pth file runs code")
    registry.verdict = PackageVerdict(PypiRegistry.ecosystem, "zebra-atlas", "1.0", (reason,))
    for count in (1, 1, 2):
        if count == 2:
            (stored,) = (tmp_path / "artifacts").iterdir()
            stored.unlink()
            registry.verdict = None
        status, _ = registry.ask(FILE, host="files.pythonhosted.org")
        assert (status, len(registry.inspected)) == (200 if count == 2 else 404, count)


def test_bytes_that_were_accepted_as_metadata_are_inspected_as_a_wheel(registry):
    """An index may name one hash for a wheel and for its metadata."""
    url = "https://pypi.org/simple/zebra-atlas/"
    document = json.loads(registry.upstream.documents[url][1])
    document["files"][0]["core-metadata"] = {"sha256": sha256(WHEEL)}
    registry.upstream.documents[url] = JSON_TYPE, json.dumps(document).encode()
    metadata = "https://files.pythonhosted.org" + FILE + ".metadata"
    registry.upstream.documents[metadata] = "", WHEEL
    assert registry.ask(FILE + ".metadata", host="files.pythonhosted.org")[0] == 200
    reason = Reason(EvidenceStep.ARTIFACT, Verdict.DENY, "pth-code", "a .pth file runs code")
    registry.verdict = PackageVerdict(PypiRegistry.ecosystem, "zebra-atlas", "1.0", (reason,))
    assert registry.ask(FILE, host="files.pythonhosted.org")[0] == 404


def test_many_accept_headers_keep_one_page_for_each_content_type(registry):
    for number in range(50):
        assert registry.ask("/simple/zebra-atlas/", accept=f"text/x{number}")[0] == 200
    ((_, _, index),) = registry.service._indexes._entries.values()
    assert len(index.pages) == 3


@pytest.mark.requirement("PKG-1")
def test_the_refusal_of_an_unknown_name_names_the_likely_one(registry):
    status, body = registry.ask("/simple/reqeusts/")
    assert (status, body) == (
        404,
        b"cellwall: reqeusts is not on pypi; did you mean requests (rank 6)?\n",
    )
    assert registry.refusals == ["reqeusts is not on pypi; did you mean requests (rank 6)?"]


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "", "get"])
def test_a_registry_can_only_be_read(registry, method):
    assert registry.ask("/simple/zebra-atlas/", method=method)[0] == 405


def test_another_host_is_not_served(registry):
    assert registry.ask("/simple/zebra-atlas/", host="evil.example")[0] == 405


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff" * 100])
def test_a_malformed_index_is_an_error_of_the_registry(registry, body):
    registry.upstream.documents["https://pypi.org/simple/zebra-atlas/"] = (JSON_TYPE, body)
    assert registry.ask("/simple/zebra-atlas/")[0] == 502


@pytest.mark.parametrize(
    "path",
    ["/simple/%00/", "/simple/" + "x" * 10_000 + "/", "/simple/r%D0%B5quests/", "/%2e%2e/%2e%2e"],
)
def test_names_that_no_registry_takes_are_not_asked_for(registry, path):
    assert registry.ask(path)[0] == 404
    assert registry.upstream.asked == []


@pytest.mark.requirement("PKG-1")
def test_a_denied_license_is_looked_up_and_refused(registry):
    info = {"info": {"license_expression": "AGPL-3.0-only"}}
    url = "https://pypi.org/pypi/zebra-atlas/json"
    registry.upstream.documents[url] = ("application/json", json.dumps(info).encode())
    judge = registry.service._judge
    registry.service._judge = PackageJudge(
        judge._feed, replace(judge.rules, denied_licenses=("AGPL-*",))
    )
    refusals = []

    async def report(event):
        refusals.append(event)

    reply = anyio.run(
        registry.service.respond,
        RegistryRequest("GET", "pypi.org", "/simple/zebra-atlas/"),
        report,
    )
    assert reply.status == 404
    assert url in registry.upstream.asked
    codes = [each.code for each in refusals[0].verdict.reasons]
    assert "license" in codes


def test_names_that_differ_by_case_are_two_packages_of_npm(registry):
    entry = json.loads(packument(("1.0.0", OLD)).decode().replace("@zoo/zebra", "ZooStream"))
    url = "https://registry.npmjs.org/ZooStream"
    registry.upstream.documents[url] = "application/json", json.dumps(entry).encode()
    status, body = registry.ask("/ZooStream", host="registry.npmjs.org")
    assert (status, json.loads(body)["name"]) == (200, "ZooStream")
    assert registry.ask("/zoostream", host="registry.npmjs.org")[0] == 404
    assert registry.upstream.asked == [url, "https://registry.npmjs.org/zoostream"]


@pytest.mark.requirement("PKG-1")
def test_a_popular_name_in_another_case_is_not_popular(registry):
    for name in ("JSONStream", "jsonstream"):
        entry = packument(("1.0.0", OLD)).decode().replace("@zoo/zebra", name)
        url = f"https://registry.npmjs.org/{name}"
        registry.upstream.documents[url] = "application/json", entry.encode()
    assert registry.ask("/JSONStream", host="registry.npmjs.org")[0] == 200
    assert registry.ask("/jsonstream", host="registry.npmjs.org")[0] == 404
    assert registry.ask("/Lodash", host="registry.npmjs.org")[0] == 404
    assert registry.refusals == [
        "jsonstream looks like JSONStream (rank 2347)",
        "Lodash is not on npm; did you mean lodash?",
    ]


@pytest.mark.parametrize(
    "path",
    [FILE.replace("_", "%5F"), FILE + "?x=1", FILE.replace("packages", "%70ackages")],
)
def test_a_path_is_compared_decoded(registry, path):
    """pip writes the plus sign of a local version as %2B, npm the slash of a scope as %2f."""
    assert registry.ask(path, host="files.pythonhosted.org") == (200, WHEEL)


@pytest.mark.parametrize(
    "path",
    [
        FILE.replace("_", "%255F"),
        "/" + FILE,
        FILE + "/",
        FILE + "%00",
        FILE.replace("/packages", "/x/../packages"),
        FILE.upper(),
        FILE.replace("1.0", "1.0.0"),
        FILE.replace("1.0", "1!1.0"),
    ],
)
def test_another_spelling_of_a_path_is_not_there(registry, path):
    assert registry.ask(path, host="files.pythonhosted.org")[0] == 404
    assert not any(url.endswith(".whl") for url in registry.upstream.asked)


def test_a_head_request_records_no_package(registry):
    request = RegistryRequest("HEAD", "files.pythonhosted.org", FILE)
    reply = anyio.run(registry.service.respond, request, registry._report)
    reply.stream.close()
    assert (reply.status, reply.size, registry.served) == (200, len(WHEEL), [])


def test_what_many_ask_for_is_loaded_and_inspected_once(registry):
    async def ask_often():
        request = RegistryRequest("GET", "files.pythonhosted.org", FILE)
        replies = []

        async def ask():
            replies.append(await registry.service.respond(request, registry._report))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
        for reply in replies:
            reply.stream.close()
        return [reply.status for reply in replies]

    assert anyio.run(ask_often) == [200] * 20
    assert len(registry.upstream.asked) == 2
    assert len(registry.inspected) == 1


@pytest.mark.parametrize(
    "error", [OSError(28, "no space"), RuntimeError("/root/secret"), KeyError("x")]
)
def test_any_failure_is_an_answer_without_content(registry, monkeypatch, error):
    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(registry.upstream, "get", fail)
    status, body = registry.ask("/simple/zebra-atlas/")
    assert status == 502
    assert b"secret" not in body
    assert len(registry.failures) == 1


def test_a_report_that_fails_means_that_nothing_is_served(registry):
    def fail(_):
        raise EgressRefused("the record cannot be written")

    request = RegistryRequest("GET", "files.pythonhosted.org", FILE)
    with pytest.raises(EgressRefused):
        anyio.run(registry.service.respond, request, fail)


def test_a_full_disk_refuses_the_file_and_leaves_nothing(registry, tmp_path, monkeypatch):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cellwall.packages.registry.artifacts.ArtifactWriter.write", write)
    status, body = registry.ask(FILE, host="files.pythonhosted.org")
    assert (status, body) == (502, b"cellwall: the host cannot store the file\n")
    assert registry.failures == ["CW-PACKAGE-STORE"]
    assert list((tmp_path / "artifacts").iterdir()) == []


def test_a_stored_file_that_changed_is_downloaded_again(registry, tmp_path):
    path = tmp_path / "artifacts" / f"sha256-{sha256(WHEEL)}"
    path.parent.mkdir()
    path.write_bytes(b"forged")
    assert registry.ask(FILE, host="files.pythonhosted.org") == (200, WHEEL)
    assert registry.inspected[0][2] == WHEEL
    # The same process: another file in its place is inspected before it is served.
    path.unlink()
    path.write_bytes(b"forged again")
    assert registry.ask(FILE, host="files.pythonhosted.org") == (200, WHEEL)
    assert len(registry.inspected) == 2


def test_no_more_is_downloaded_than_the_index_states(registry):
    url = "https://pypi.org/simple/zebra-atlas/"
    document = json.loads(registry.upstream.documents[url][1])
    document["files"][0]["size"] = len(WHEEL) - 1
    registry.upstream.documents[url] = JSON_TYPE, json.dumps(document).encode()
    assert registry.ask(FILE, host="files.pythonhosted.org")[0] == 403
    assert registry.failures == ["CW-PACKAGE-TOO-LARGE"]


def test_a_session_gets_no_more_bytes_than_its_bound(registry):
    bounds = SessionBounds(max_bytes=5000)
    document = len(registry.upstream.documents["https://pypi.org/simple/zebra-atlas/"][1])
    bounds.count_bytes(5000 - document - 3)

    async def ask(used):
        request = RegistryRequest("GET", "files.pythonhosted.org", FILE)
        reply = await registry.service.respond(request, registry._report, bounds=used)
        if reply.stream:
            reply.stream.close()
        return reply.status

    assert anyio.run(ask, bounds) == 502
    assert registry.failures == ["CW-NET-LIMIT"]
    assert anyio.run(ask, SessionBounds()) == 200


@pytest.mark.slow
def test_the_loop_runs_on_while_a_large_index_is_judged(registry):
    versions = [(f"{number}.0", OLD) for number in range(2000)]
    registry.upstream.documents["https://pypi.org/simple/zebra-atlas/"] = (
        JSON_TYPE,
        pypi_index(*versions),
    )

    async def run():
        turns = 0
        request = RegistryRequest("GET", "pypi.org", "/simple/zebra-atlas/", JSON_TYPE)
        asked = asyncio.create_task(registry.service.respond(request, registry._report))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return (await asked).status, turns

    status, turns = asyncio.run(run())
    assert status == 200
    assert turns > 20


def test_a_feed_that_is_deleted_or_damaged_in_between_allows_nothing(registry, tmp_path):
    strict = PackageJudge(Feed(str(tmp_path / "feed")), PackageRules())
    registry.service._judge = strict
    assert registry.ask("/simple/zebra-atlas/")[0] == 404
    assert "feed of malicious packages is missing" in registry.refusals[0]
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "feed.sqlite").write_bytes(b"not a database" * 100)
    assert registry.ask("/simple/zebra-atlas/")[0] == 502


@pytest.mark.requirement("PKG-1")
def test_an_advisory_counts_for_an_index_that_was_just_served(registry, tmp_path):
    feed = Feed(str(tmp_path / "feed"))
    registry.service._judge = PackageJudge(feed, PackageRules(without_feed=Verdict.ALLOW))
    assert registry.ask("/simple/zebra-atlas/")[0] == 200
    pypi = Ecosystem.PYPI
    other = Affected(pypi, "okapi-atlas", frozenset(), ())
    named = Affected(pypi, "zebra-atlas", frozenset(), ())
    feed.add([Advisory("MAL-2026-1", "2026-11-01T00:00:00Z", "", False, (other,))], source="pypi")
    assert registry.ask("/simple/zebra-atlas/")[0] == 200  # the control: about another package
    feed.add([Advisory("MAL-2026-2", "2026-11-02T00:00:00Z", "", False, (named,))], source="pypi")
    assert registry.ask("/simple/zebra-atlas/")[0] == 404


def test_a_withheld_newest_version_is_reported_with_the_one_to_use(registry):
    found = registry
    found.ask("/simple/zebra-atlas/")
    assert len(found.refusals) == 1
    assert found.refusals[0].startswith("zebra-atlas 2.0 is ")
    assert found.refusals[0].endswith(" hours old; 1.0 is allowed")


def test_the_newest_version_is_known_whatever_the_order_of_the_index(registry):
    url = "https://pypi.org/simple/zebra-atlas/"
    young = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    registry.upstream.documents[url] = (
        JSON_TYPE,
        pypi_index(("10.0", young), ("2.9", OLD), ("2.10", OLD), ("2.9.1", OLD)),
    )
    registry.ask("/simple/zebra-atlas/")
    (refusal,) = registry.refusals
    assert refusal.startswith("zebra-atlas 10.0 is ")
    assert refusal.endswith("; 2.10 is allowed")
