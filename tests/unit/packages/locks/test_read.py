"""Lock files of each kind, read into one form (PKG-5)."""

from __future__ import annotations

import base64
import json
import os

import pytest
from pip._internal.network.session import PipSession
from pip._internal.req.req_file import parse_requirements

from cellwall.packages.locks.model import BadLock
from cellwall.packages.locks.read import read_lock

A, B = "a" * 64, "b" * 64
FILES = "https://files.pythonhosted.org/packages"

PYLOCK = f"""
lock-version = "1.0"
created-by = "test"
[[packages]]
name = "requests"
version = "2.32.3"
dependencies = [{{ name = "idna" }}]
wheels = [{{ name = "requests-2.32.3-py3-none-any.whl", url = "{FILES}/requests-2.32.3-py3-none-any.whl", hashes = {{ sha256 = "{A}" }} }}]
[[packages]]
name = "idna"
version = "3.7"
sdist = {{ name = "idna-3.7.tar.gz", url = "{FILES}/idna-3.7.tar.gz", hashes = {{ sha256 = "{B}" }} }}
[[packages]]
name = "local-part"
directory = {{ path = "part" }}
"""

UV = f"""
version = 1
[[package]]
name = "app"
version = "0.1"
source = {{ virtual = "." }}
dependencies = [{{ name = "requests" }}]
[package.dev-dependencies]
dev = [{{ name = "patched" }}]
[[package]]
name = "requests"
version = "2.32.3"
source = {{ registry = "https://pypi.org/simple" }}
dependencies = [{{ name = "idna", marker = "python_version > '3'" }}]
wheels = [{{ url = "{FILES}/requests-2.32.3-py3-none-any.whl", hash = "sha256:{A}", size = 1 }}]
[[package]]
name = "idna"
version = "3.7"
source = {{ registry = "https://pypi.org/simple" }}
sdist = {{ url = "{FILES}/idna-3.7.tar.gz", hash = "sha256:{B}" }}
[[package]]
name = "patched"
version = "1"
source = {{ git = "https://token:x@example.com/r.git?rev=1" }}
"""

REQUIREMENTS = f"""
# made by a tool
--index-url https://pypi.org/simple

requests==2.32.3 ; python_version >= "3.8" \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via -r requirements.in
idna==3.7 --hash=sha256:{B}
    # via
    #   requests
    #   other
plain>=1  # a comment
direct @ https://evil.example/direct-1.whl?token=1
"""

SHA512 = base64.b64encode(b"x" * 64).decode()
PACKAGE_LOCK = {
    "name": "app",
    "lockfileVersion": 3,
    "packages": {
        "": {"dependencies": {"express": "^4"}, "devDependencies": {"alias": "npm:left-pad@1"}},
        "node_modules/express": {
            "version": "4.18.2",
            "resolved": "https://registry.npmjs.org/express/-/express-4.18.2.tgz",
            "integrity": f"sha512-{SHA512}",
            "license": "MIT",
            "dependencies": {"debug": "2.6.9"},
        },
        "node_modules/express/node_modules/debug": {"version": "2.6.9", "license": "MIT", "dependencies": {"ms": "2"}},
        "node_modules/debug": {"version": "4.3.4"},
        "node_modules/ms": {"version": "2.0.0", "resolved": "git+ssh://git@github.com/a/ms.git#abc"},
        "node_modules/alias": {"version": "1.3.0", "name": "left-pad"},
        "node_modules/part": {"resolved": "packages/part", "link": True},
        "packages/part": {"name": "part", "dependencies": {"debug": "4"}},
    },
}  # fmt: skip


def write(folder, name, content):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def names(lock):
    return {each.ref: (each.name, each.version, each.is_direct, each.origin) for each in lock.packages}  # fmt: skip


def path_names(lock, name):
    return [each.name for each in lock.path_to(name)]


def test_pylock(tmp_path):
    lock = read_lock(write(tmp_path, "pylock.toml", PYLOCK))
    assert names(lock) == {
        "requests@2.32.3": ("requests", "2.32.3", True, ""),
        "idna@3.7": ("idna", "3.7", False, ""),
        "local-part@None": ("local-part", None, True, "file: of this machine"),
    }
    assert path_names(lock, "idna") == ["requests", "idna"]
    assert lock.by_ref["idna@3.7"].hashes == {("sha256", B)}
    assert lock.has_graph


def test_uv_lock(tmp_path):
    lock = read_lock(write(tmp_path, "uv.lock", UV))
    assert names(lock) == {
        "requests@2.32.3": ("requests", "2.32.3", True, ""),
        "idna@3.7": ("idna", "3.7", False, ""),
        # Credentials of a URL are not part of the origin.
        "patched@1 git+https://example.com": ("patched", "1", True, "git+https://example.com"),
    }
    assert path_names(lock, "idna") == ["requests", "idna"]


def test_requirements_with_hashes_and_their_causes(tmp_path):
    lock = read_lock(write(tmp_path, "requirements.txt", REQUIREMENTS))
    assert names(lock) == {
        "requests@2.32.3": ("requests", "2.32.3", True, ""),
        "idna@3.7": ("idna", "3.7", False, ""),
        "plain@None": ("plain", None, True, ""),
        "direct@None": ("direct", None, True, "https://evil.example"),
    }
    assert path_names(lock, "idna") == ["requests", "idna"]
    assert lock.by_ref["requests@2.32.3"].hashes == {("sha256", A), ("sha256", B)}
    other = REQUIREMENTS.replace("https://pypi.org/simple", "https://user:x@index.example:8443/s")
    found = read_lock(write(tmp_path, "requirements.txt", other))
    assert found.by_ref["idna@3.7"].origin == "https://index.example:8443"


def test_package_lock_resolves_dependencies_as_node_does(tmp_path):
    lock = read_lock(write(tmp_path, "package-lock.json", PACKAGE_LOCK))
    assert {ref: each[:3] for ref, each in names(lock).items()} == {
        "node_modules/express": ("express", "4.18.2", True),
        "node_modules/express/node_modules/debug": ("debug", "2.6.9", False),
        "node_modules/debug": ("debug", "4.3.4", True),  # of a package of the workspace
        "node_modules/ms": ("ms", "2.0.0", False),
        "node_modules/alias": ("left-pad", "1.3.0", True),
    }
    assert path_names(lock, "ms") == ["express", "debug", "ms"]
    express = lock.by_ref["node_modules/express"]
    assert (express.licence, express.hashes) == ("MIT", {("sha512", (b"x" * 64).hex())})
    assert express.dependencies == ("node_modules/express/node_modules/debug",)
    assert lock.by_ref["node_modules/ms"].origin == "git+ssh://github.com/a/ms.git"


def nested(count):
    return "[" * count


HOSTILE = {
    "no lock file's name": ("setup.py", ""),
    "an old lock of npm": ("package-lock.json", '{"lockfileVersion": 1, "dependencies": {}}'),
    "no JSON": ("package-lock.json", "{"),
    "deep JSON": ("package-lock.json", nested(100_000)),
    "a list": ("package-lock.json", "[]"),
    "packages that are a list": ("package-lock.json", '{"packages": [1]}'),
    "a package that is text": ("package-lock.json", '{"packages": {"node_modules/a": "x"}}'),
    "no version": ("package-lock.json", '{"packages": {"node_modules/a": {}}}'),
    "a malformed name": ("package-lock.json", '{"packages": {"node_modules/../a": {"version": "1"}}}'),
    "a name with control characters": ("package-lock.json", '{"packages": {"node_modules/a\\u001b[2J": {"version": "1"}}}'),
    "a malformed integrity": ("package-lock.json", '{"packages": {"node_modules/a": {"version": "1", "integrity": "sha512-!"}}}'),
    "a short integrity": ("package-lock.json", '{"packages": {"node_modules/a": {"version": "1", "integrity": "sha512-YQ=="}}}'),
    "a deep tree": ("package-lock.json", json.dumps({"packages": {"node_modules/a/" * 100 + "a": {"version": "1"}}})),
    "many dependencies": ("package-lock.json", json.dumps({"packages": {"": {"dependencies": {f"a{n}": "1" for n in range(200_001)}}}})),
    "no TOML": ("pylock.toml", "["),
    "deep TOML": ("pylock.toml", "a = " + nested(50_000)),
    "another TOML": ("pylock.toml", "a = 1"),
    "a lock of the future": ("pylock.toml", 'lock-version = "2.0"\ncreated-by = "x"\npackages = []'),
    "a wheel of another package": ("pylock.toml", PYLOCK.replace("requests-2.32.3-py3", "other-2.32.3-py3")),
    "a malformed hash": ("pylock.toml", PYLOCK.replace(A, "zz")),
    "one pin twice": ("uv.lock", UV + UV.partition("\n[[package]]")[2].partition("[[package]]")[2].join(["\n[[package]]", ""])),
    "uv.lock of another version": ("uv.lock", "version = 2"),
    "a dependency that is text": ("uv.lock", UV.replace('[{ name = "requests" }]', '["requests"]')),
    "many versions of one name": ("uv.lock", "version = 1\n" + "".join(f'[[package]]\nname = "a"\nversion = "{n}"\n' for n in range(101))),
    "an included file": ("requirements.txt", "-r other.txt"),
    "an editable folder": ("requirements.txt", "-e ../x"),
    "a path": ("requirements.txt", "./x.whl"),
    "a file that is not text": ("requirements.txt", "\udcff"),
    "a hash of another length": ("requirements.txt", "a==1 --hash=sha256:abcd"),
    "an unknown hash": ("requirements.txt", f"a==1 --hash=crc32:{A}"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_content_is_refused_with_a_bounded_printable_message(tmp_path, what):
    name, content = HOSTILE[what]
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadLock) as error:
        read_lock(str(path))
    assert error.value.message.isprintable()
    assert len(error.value.message) < 400
    assert str(tmp_path) not in error.value.message


EVIL = f"evil==6.6 --hash=sha256:{B}"
HIDDEN = {
    "an included file without a space": f"a==1 --hash=sha256:{A}\n-rother.txt",
    "an included file by a short name": f"a==1 --hash=sha256:{A}\n--requirem other.txt",
    "a second option of a line": f"--pre -r other.txt\na==1 --hash=sha256:{A}",
    "a comment in another encoding": f"# coding: utf-7\n# +AAo-{EVIL}\na==1 --hash=sha256:{A}",
    "the same in the second line": f"#\n# vim: fileencoding=utf-7 +AAo-{EVIL}\na==1 --hash=sha256:{A}",
}  # fmt: skip
ODD = {
    "an index without a space": f"-ihttps://evil.example/simple\na==1 --hash=sha256:{A}",
    "an index by a short name": f"--index https://evil.example/simple\na==1 --hash=sha256:{A}",
    "an editable folder without a space": f"-e./x\na==1 --hash=sha256:{A}",
    "a continuation that is none": f"a==1 --hash=sha256:{A} \\ \n{EVIL}",
    "words behind a hash": f"a==1 --hash=sha256:{A} evil==6.6",
    "an option of a requirement": f"a==1 --hash=sha256:{A} --config-settings=x=y",
}


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("what", HIDDEN)
def test_no_package_that_pip_would_install_is_hidden(tmp_path, what):
    (tmp_path / "other.txt").write_text(EVIL)
    path = tmp_path / "requirements.txt"
    path.write_text(HIDDEN[what] + "\n")
    # The control: pip's own reader finds the package.
    found = [each.requirement for each in parse_requirements(str(path), session=PipSession())]
    assert [each.partition("==")[0] for each in sorted(found)] == ["a", "evil"]
    with pytest.raises(BadLock):
        read_lock(str(path))


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("what", ODD)
def test_what_pip_writes_in_no_file_is_refused(tmp_path, what):
    with pytest.raises(BadLock):
        read_lock(write(tmp_path, "requirements.txt", ODD[what]))


def test_ordinary_options_are_read(tmp_path):
    options = (
        "# -*- coding: utf-8 -*-\n--index-url=https://pypi.org/simple\n--no-binary :all:\n"
        f"--only-binary=a\n--require-hashes\n--pre\na==1 \\\n  --hash=sha256:{A} \\\n  --hash=sha256:{B}\n"
    )
    lock = read_lock(write(tmp_path, "requirements.txt", options))
    assert lock.by_ref["a@1"].hashes == {("sha256", A), ("sha256", B)}
    assert lock.by_ref["a@1"].origin == ""


@pytest.mark.requirement("PKG-5")
def test_a_package_with_a_registry_and_a_folder_is_not_taken_for_local(tmp_path):
    both = UV.replace(
        'source = { registry = "https://pypi.org/simple" }',
        'source = { registry = "https://pypi.org/simple", virtual = "." }',
        1,
    )
    assert both != UV
    with pytest.raises(BadLock):
        read_lock(write(tmp_path, "uv.lock", both))


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("kind", ["wheels", "sdist", "archive"])
@pytest.mark.parametrize("has_url", [False, True])
def test_a_file_beside_a_pylock_is_not_of_the_registry(tmp_path, kind, has_url):
    filename = "a-1-py3-none-any.whl" if kind == "wheels" else "a-1.tar.gz"
    hosted = f'url = "{FILES}/{filename}"'

    def origin(*places: str) -> str:
        file = f'{{ {", ".join(places)}, hashes = {{ sha256 = "{A}" }} }}'
        entry = f"[{file}]" if kind == "wheels" else file
        content = f'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "a"\nversion = "1"\n{kind} = {entry}\n'
        return read_lock(write(tmp_path, "pylock.toml", content)).packages[0].origin

    beside = f'path = "x/{filename}"'
    assert origin(*([hosted] if has_url else []), beside) == "file: of this machine"
    assert origin(hosted) == ""  # the control


VERSIONS = {
    "1.0.0": True,
    "v1.0.0": True,
    "1.0.0-rc.1+build_5": True,
    "npm:evil@1.0.0": False,
    "https://evil.example/a.tgz": False,
    "git+https://evil.example/a.git#1.0.0": False,
    "file:../evil.tgz": False,
    "evil/a": False,
    "1.x": False,
    ">=1.0.0": False,
    "1.0.0 || 2.0.0": False,
    "latest": False,
    "": False,
}


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("version", VERSIONS)
def test_an_entry_of_npm_is_pinned_to_a_version_and_no_other_source(tmp_path, version):
    entry = {"version": version, "integrity": f"sha512-{base64.b64encode(bytes(64)).decode()}"}
    path = write(tmp_path, "package-lock.json", {"packages": {"node_modules/a": entry}})
    if VERSIONS[version]:
        assert read_lock(path).packages[0].version == version
        return
    with pytest.raises(BadLock):
        read_lock(path)


def test_a_file_that_is_no_file_or_too_large_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "uv.lock")
    (tmp_path / "pylock.toml").mkdir()
    with open(tmp_path / "package-lock.json", "wb") as large:
        large.truncate(1 << 34)
    for name in ("uv.lock", "pylock.toml", "package-lock.json", "requirements.txt"):
        with pytest.raises(BadLock):
            read_lock(str(tmp_path / name))


def test_a_cycle_of_dependencies_has_a_path_and_an_end(tmp_path):
    content = {
        "packages": {
            "": {"dependencies": {"a": "1"}},
            "node_modules/a": {"version": "1.0.0", "dependencies": {"b": "1"}},
            "node_modules/b": {"version": "1.0.0", "dependencies": {"a": "1"}},
        }
    }
    lock = read_lock(write(tmp_path, "package-lock.json", content))
    assert path_names(lock, "b") == ["a", "b"]
    assert path_names(lock, "absent") == []
