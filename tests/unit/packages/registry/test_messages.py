"""Parts of files and copies of clients, by the rules of HTTP (RFC 9110)."""

from __future__ import annotations

import io

import pytest

from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.registry.messages import RegistryRequest, artifact_reply, index_reply

DIGEST = "ab" * 32
ARTIFACT = Artifact("https://pypi.org/x-1.0.whl", "x-1.0.whl", "1.0", "sha256", DIGEST)
TAG = f'"sha256-{DIGEST}"'
SIZE = 1000


def ask(method="GET", **headers):
    request = RegistryRequest(method, "pypi.org", "/x-1.0.whl", **headers)
    return artifact_reply(request, ARTIFACT, io.BytesIO(bytes(SIZE)), SIZE)


def part_of(reply):
    return reply.status, reply.start, reply.size, dict(reply.headers).get("content-range")


WHOLE = (200, 0, SIZE, None)


@pytest.mark.parametrize(
    ("value", "start", "size"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 1000),
        ("bytes=10-19", 10, 10),
        ("bytes=990-2000", 990, 10),
        ("bytes=999-999", 999, 1),
        ("bytes=-10", 990, 10),
        ("bytes=-5000", 0, 1000),
        (" bytes=10-19 ", 10, 10),
        ("bytes=0-9999999999999999999", 0, 1000),
    ],
)
def test_a_range_gets_its_part(value, start, size):
    span = f"bytes {start}-{start + size - 1}/{SIZE}"
    assert part_of(ask(range=value)) == (206, start, size, span)


@pytest.mark.parametrize("value", ["bytes=1000-", "bytes=1000-1001", "bytes=-0"])
def test_a_range_outside_of_the_file_is_not_satisfiable(value):
    assert part_of(ask(range=value))[0] == 416
    assert part_of(ask(range=value))[2:] == (0, f"bytes */{SIZE}")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=20-10",
        "bytes=0-1,5-6",
        "bytes=+1-2",
        "bytes=1 - 2",
        "items=0-1",
        "bytes=" + "9" * 50 + "-",
        "bytes=٣-٤",
    ],
)
def test_a_header_that_names_no_single_range_is_ignored(value):
    assert part_of(ask(range=value)) == WHOLE


def test_a_range_counts_for_get_only():
    assert part_of(ask("HEAD", range="bytes=0-1")) == WHOLE


def test_a_part_extends_the_same_file_only():
    assert part_of(ask(range="bytes=0-1", if_range=TAG))[0] == 206
    assert part_of(ask(range="bytes=0-1", if_range='"other"')) == WHOLE
    # A weak tag, or a date, does not say that the bytes are equal.
    assert part_of(ask(range="bytes=0-1", if_range=f"W/{TAG}")) == WHOLE


def test_a_client_with_the_same_file_gets_no_bytes():
    for copies in (TAG, f"W/{TAG}", f'"a", {TAG}'):
        reply = ask(if_none_match=copies, range="bytes=0-1")
        assert (reply.status, reply.size, reply.start) == (304, 0, 0)
        assert dict(reply.headers)["etag"] == TAG
    for copies in ('"a"', DIGEST, "*" * 10_000, '"' * 10_000):
        assert part_of(ask(if_none_match=copies)) == WHOLE


@pytest.mark.requirement("PKG-1")
def test_no_copy_is_used_without_a_judged_request():
    page = index_reply(RegistryRequest("GET", "pypi.org", "/simple/x/"), "text/html", b"x", '"t"')
    for reply in (ask(), ask(range="bytes=0-1"), ask(if_none_match=TAG), page):
        assert dict(reply.headers)["cache-control"] == "no-cache"


def test_a_page_that_has_not_changed_is_not_sent_again():
    def page(**headers):
        request = RegistryRequest("GET", "pypi.org", "/simple/x/", **headers)
        return index_reply(request, "text/html", b"page", '"t"')

    assert (page().status, page().body, page().size) == (200, b"page", 4)
    same = page(if_none_match='"t"')
    assert (same.status, same.body, same.size) == (304, b"", 0)
    assert page(if_none_match='"u"').status == 200
