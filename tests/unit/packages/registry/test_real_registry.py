"""The service in front of a real HTTP registry (PKG-1, PKG-4)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.registry.artifacts import ArtifactStore
from cellwall.packages.registry.messages import RegistryRequest
from cellwall.packages.registry.npm_registry import NpmRegistry
from cellwall.packages.registry.pypi import JSON_TYPE
from cellwall.packages.registry.pypi_registry import PypiRegistry
from cellwall.packages.registry.service import RegistryService
from cellwall.packages.registry.upstream import HttpUpstream
from registries import serve_registries

pytestmark = pytest.mark.slow  # each client loads the authorities that the host trusts


@pytest.fixture
def registries():
    with serve_registries() as served:
        yield served


def ask(registries, folder, *paths):
    """The answers to these paths, in one session."""

    async def run():
        refusals = []

        async def report(event):
            refusals.append(event)

        async with HttpUpstream([registries.base]) as upstream:
            service = RegistryService(
                {
                    "pypi": PypiRegistry(registries.base),
                    "npm": NpmRegistry(f"{registries.base}/npm"),
                },
                upstream,
                PackageJudge(Feed(str(folder)), PackageRules(without_feed=Verdict.ALLOW)),
                ArtifactStore(str(folder / "artifacts")),
                inspect=lambda *_: None,
            )
            replies = []
            for path in paths:
                host = "npm" if path.startswith("/@") else "pypi"
                reply = await service.respond(RegistryRequest("GET", host, path, JSON_TYPE), report)
                if reply.stream is not None:
                    with reply.stream:
                        replies.append((reply.status, reply.stream.read()))
                else:
                    replies.append((reply.status, reply.body))
        return replies, refusals

    return anyio.run(run)


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("has_json", [True, False])
def test_a_version_published_an_hour_ago_is_not_there(registries, tmp_path, has_json):
    registries.has_json = has_json
    young = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    registries.add_wheel("zebra-atlas", "1.0")
    registries.add_wheel("zebra-atlas", "2.0", uploaded=young)
    paths = [
        "/simple/zebra-atlas/",
        *(f"/packages/zebra_atlas-{v}-py3-none-any.whl" for v in ("1.0", "2.0")),
    ]
    ((status, body), (old, _), (new, _)), _ = ask(registries, tmp_path, *paths)
    assert (status, json.loads(body)["versions"]) == (200, ["1.0"])
    assert (old, new) == (200, 404)


@pytest.mark.requirement("PKG-5")
def test_a_file_that_changed_after_it_was_indexed_is_not_served(registries, tmp_path):
    registries.add_wheel("zebra-atlas", "1.0", served=b"other bytes")
    (reply,), _ = ask(registries, tmp_path, "/packages/zebra_atlas-1.0-py3-none-any.whl")
    assert reply == (
        403,
        b"cellwall: the downloaded file does not have the hash that the index names\n",
    )


@pytest.mark.requirement("PKG-4")
def test_a_file_on_another_host_is_not_downloaded(registries, tmp_path):
    registries.add_wheel(
        "zebra-atlas",
        "1.0",
        changes={"url": "http://169.254.169.254/zebra_atlas-1.0-py3-none-any.whl"},
    )
    (reply,), _ = ask(registries, tmp_path, "/zebra_atlas-1.0-py3-none-any.whl")
    assert reply[0] == 403
    assert not any("169" in path for _, path in registries.seen)


def test_an_npm_package_is_served_with_its_tarball(registries, tmp_path):
    registries.add_npm("@zoo/zebra", "1.0.0")
    paths = "/@zoo%2fzebra", "/@zoo/zebra/-/zebra-1.0.0.tgz"
    ((status, body), (tarball, _)), _ = ask(registries, tmp_path, *paths)
    assert (status, json.loads(body)["dist-tags"], tarball) == (200, {"latest": "1.0.0"}, 200)
    shown = json.loads(body)["versions"]["1.0.0"]["dist"]["tarball"]
    assert shown == "https://registry.npmjs.org/@zoo/zebra/-/zebra-1.0.0.tgz"


def test_files_of_a_mirror_are_named_below_the_public_host(registries, tmp_path):
    registries.add_wheel("zebra-atlas", "1.0")
    ((_, body),), _ = ask(registries, tmp_path, "/simple/zebra-atlas/")
    (shown,) = json.loads(body)["files"]
    assert (
        shown["url"] == "https://files.pythonhosted.org/packages/zebra_atlas-1.0-py3-none-any.whl"
    )
