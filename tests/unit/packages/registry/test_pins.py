"""The hashes of shipped locks answer questions about exactly these files, and overrule no denial."""

from __future__ import annotations

import hashlib
import json

import anyio
import pytest

from cellwall.core.packages import InstallRuling
from cellwall.core.verdict import Decision, Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.registry.downloads import RegistryDocument
from cellwall.packages.registry.pypi_registry import PypiRegistry

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
OLD = "2020-01-01T00:00:00.000000Z"


def digest(filename: str) -> str:
    return hashlib.sha256(filename.encode()).hexdigest()


FILES = (
    "zebra_atlas-1.0-py3-none-any.whl",
    "zebra_atlas-1.0-1-py3-none-any.whl",  # of the same version, added later
    "zebra_atlas-2.0-py3-none-any.whl",
)
PINNED = frozenset({digest(FILES[0])})


class Upstream:
    def __init__(self, **changes):
        files = [
            {
                "filename": name,
                "url": f"https://files.pythonhosted.org/{name}",
                "hashes": {"sha256": digest(name)},
                "upload-time": OLD,
                **changes,
            }
            for name in FILES
        ]
        self.body = json.dumps({"name": "zebra-atlas", "files": files}).encode()

    async def get(self, url, *, accept, max_bytes):
        return RegistryDocument(200, JSON_TYPE, self.body)


class Asking:
    def ruling(self, version):
        return InstallRuling(Decision(Verdict.ASK, "Install(pypi:zebra-atlas)", "ask me"))


def shown(tmp_path, rules: PackageRules, about=None, **changes):
    judge = PackageJudge(Feed(str(tmp_path)), rules)
    if about is not None:
        judge = judge.under(lambda _ecosystem, _name: about)
    index = anyio.run(PypiRegistry().load, "zebra-atlas", Upstream(**changes), judge)
    files = json.loads(index.pages[JSON_TYPE])["files"]
    return index.verdict.verdict, [each["filename"] for each in files]


@pytest.mark.requirement("PKG-2")
def test_without_a_feed_the_index_has_the_pinned_file_alone(tmp_path):
    assert shown(tmp_path, PackageRules()) == (Verdict.ASK, [])
    assert shown(tmp_path, PackageRules(pinned=PINNED)) == (Verdict.ALLOW, [FILES[0]])
    everything = PackageRules(pinned=PINNED, without_feed=Verdict.ALLOW)
    assert shown(tmp_path, everything) == (Verdict.ALLOW, list(FILES))


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        (PackageRules(pinned=PINNED, without_feed=Verdict.DENY), {}),
        (PackageRules(pinned=PINNED), {"yanked": "broken"}),
        (PackageRules(pinned=PINNED), {"hashes": {"sha256": "00" * 32}}),
    ],
    ids=["a profile that needs a feed", "a yanked version", "a changed hash"],
)
def test_a_pin_overrules_no_denial_and_covers_no_other_hash(tmp_path, rules, changes):
    assert shown(tmp_path, rules, **changes)[1] == []


@pytest.mark.requirement("PKG-2")
def test_a_pin_does_not_answer_a_rule_that_asks(tmp_path):
    assert shown(tmp_path, PackageRules(pinned=PINNED), Asking()) == (Verdict.ASK, [])
