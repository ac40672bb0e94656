"""Wheels of a request are fetched by a pip that starts nothing, and looked at before they are used."""

from __future__ import annotations

import os
import subprocess
import tarfile
import threading
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError, Denied
from cellwall.core.packages import Package
from cellwall.sandbox import languages
from cellwall.sandbox.templates import definitions, environments, installer, wheelhouse
from cellwall.sandbox.templates.wheelhouse import has_script_path
from unit.sandbox import tiny_template

METADATA = "tiny-1.0.dist-info/METADATA"
NEEDS = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: "


def ignore(_: object) -> None:
    return


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """What the index has."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    tiny_template.offline(monkeypatch, folder, b"")
    return folder


def build(home: str, *request: str, name: str = "web", may_install=ignore):
    return environments.build(
        home, name, may_install=may_install, request=request, on_progress=ignore
    )


def refusal(home: str, *request: str) -> str:
    with pytest.raises(CellwallError) as told:
        build(home, *request)
    assert told.value.hint
    assert home not in str(told.value)
    assert definitions.names(home) == ["python-data"]
    assert not Path(home, "templates", "web").exists()
    return told.value.code


@pytest.mark.requirement("LANG-2")
@pytest.mark.slow
def test_a_request_is_resolved_hashed_installed_and_found_again(shelf, state_home):
    tiny_template.wheel(shelf)
    asked = []
    built = build(state_home, "tiny", may_install=asked.append)
    assert asked == [[Package("tiny")], (Package("tiny", "1.0"),)]
    assert (built.packages, built.is_new) == ((("tiny", "1.0"),), True)
    assert definitions.read(state_home, "web") == ("tiny",)
    pins = Path(built.path, "..", "requirements.txt").read_bytes()
    assert definitions.pinned(pins) == [Package("tiny", "1.0")]
    assert b"--hash=sha256:" in pins
    os.unlink(next(shelf.glob("*.whl")))  # no index is asked again
    assert not build(state_home, "tiny").is_new
    assert environments.environment_of(state_home, "web") == built.path
    environments.remove(state_home, "web", on_progress=ignore)
    assert definitions.names(state_home) == ["python-data"]


@pytest.mark.slow
def test_what_the_index_answered_is_asked_about_before_it_is_unpacked(
    shelf, state_home, monkeypatch
):
    tiny_template.wheel(shelf)
    monkeypatch.setattr("cellwall.sandbox.templates.installer.install", None)

    def refuse_versions(packages):
        if any(package.version for package in packages):
            raise Denied("not this one")

    with pytest.raises(Denied):
        build(state_home, "tiny", may_install=refuse_versions)
    assert definitions.names(state_home) == ["python-data"]


@pytest.mark.slow
def test_no_source_is_built_that_a_wheel_needs_by_address(shelf, tmp_path, state_home):
    mark = tmp_path / "executed"
    source = tmp_path / "evil-1.0"
    source.mkdir()
    attack = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"
    (source / "backend.py").write_text(attack)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    with tarfile.open(tmp_path / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "evil-1.0")
    address = f"evil @ file://{tmp_path}/evil-1.0.tar.gz\n"
    tiny_template.wheel(shelf, files={METADATA: NEEDS + address})
    assert refusal(state_home, "tiny") == "CW-PACKAGE-SOURCE"
    assert not mark.exists()
    # The control: `--only-binary` alone runs it.
    words = [languages.python_outside(), "-I", "-m", "pip", "download", "--only-binary", ":all:"]
    subprocess.run([*words, "-d", str(tmp_path / "d"), "tiny"], capture_output=True, check=False)
    assert mark.exists()


@pytest.mark.slow
def test_what_is_only_there_as_source_or_not_at_all_is_told_by_name(shelf, state_home):
    with tarfile.open(shelf / "tiny-1.0.tar.gz", "w:gz"):
        pass
    with pytest.raises(CellwallError, match="no wheel of tiny ") as told:
        build(state_home, "tiny")
    assert told.value.code == "CW-PACKAGE-NOT-FOUND"


class Endless(BaseHTTPRequestHandler):
    """An index that has no end, in the page or in the file."""

    def do_GET(self) -> None:
        is_file = self.path.endswith(".whl")
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if is_file else "text/html")
        self.end_headers()
        with suppress(OSError):  # whoever asked has had enough
            self.wfile.write(b"<a href=/tiny-1.0-py3-none-any.whl>tiny-1.0-py3-none-any.whl</a>")
            while is_file or "endless" in self.path:
                self.wfile.write(b" " * 65536)

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.slow
@pytest.mark.parametrize("path", ["simple", "endless"])
def test_an_index_that_sends_without_end_fills_neither_disk_nor_memory(
    state_home, monkeypatch, path
):
    monkeypatch.setattr(installer, "MAX_WHEEL_BYTES", 2**20)
    monkeypatch.setattr(wheelhouse, "MAX_MEMORY_BYTES", 2**28)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/{path}")
        assert refusal(state_home, "tiny") == "CW-PACKAGE-REFUSED"
        server.shutdown()


def inspected(folder: Path) -> str:
    with pytest.raises(CellwallError) as told:
        wheelhouse.inspect(str(folder))
    assert str(folder) not in str(told.value)
    return told.value.code


@pytest.mark.parametrize("address", ["x@https://e.example/x.whl ; a == 'b'", "x\n @ file:///x"])
def test_a_wheel_that_needs_another_by_address_is_refused(tmp_path, address):
    tiny_template.wheel(tmp_path, files={METADATA: NEEDS + address})
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"
    tiny_template.wheel(tmp_path, files={METADATA: NEEDS + "x>=1 ; extra == '@'"})
    assert wheelhouse.inspect(str(tmp_path)) == (Package("tiny", "1.0"),)


@pytest.mark.parametrize("path", ["../evil.py", "/etc/evil", "tiny/../../evil", "..\\evil"])
def test_a_wheel_with_files_outside_of_itself_is_refused(tmp_path, path):
    tiny_template.wheel(tmp_path, files={path: ""})
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"


@pytest.mark.parametrize("place", ["tiny-1.0.dist-info", "tiny-1.0.dist-info/."])
@pytest.mark.parametrize("path", ["/home/ann/.bashrc", "../../evil"])
def test_a_wheel_whose_program_would_be_made_elsewhere_is_refused(tmp_path, place, path):
    scripts = f"[console_scripts]\n{path} = tiny:main\n"
    tiny_template.wheel(tmp_path, files={f"{place}/entry_points.txt": scripts})
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"


def test_packages_that_are_too_large_are_refused(tmp_path, monkeypatch):
    tiny_template.wheel(tmp_path, files={"tiny/zeros": "0" * 100_000})
    monkeypatch.setattr(wheelhouse, "MAX_UNPACKED_BYTES", 100_000)
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"
    monkeypatch.setattr(wheelhouse, "MAX_UNPACKED_BYTES", 200_000)
    assert wheelhouse.inspect(str(tmp_path))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_wheel_that_unpacks_to_more_than_it_says_is_refused_unread(tmp_path, kind):
    # Python unpacks these whole before it cuts them to the size they are said to have.
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w", kind) as archive:
        archive.writestr(METADATA, NEEDS + "x")
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"
    tiny_template.wheel(tmp_path)
    assert wheelhouse.inspect(str(tmp_path))


def test_a_wheel_with_an_endless_list_of_files_is_refused_unread(tmp_path, monkeypatch):
    tiny_template.wheel(tmp_path)
    monkeypatch.setattr(wheelhouse, "_MAX_READ_BYTES", 300)
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"
    monkeypatch.setattr(wheelhouse, "_MAX_READ_BYTES", 3000)
    assert wheelhouse.inspect(str(tmp_path))


def test_a_wheel_whose_description_cannot_be_unpacked_is_refused(tmp_path):
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(METADATA, NEEDS + "x")
    content = bytearray(path.read_bytes())
    start = content.index(b"METADATA") + len("METADATA")
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(content)
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tiny-1.0.tar.gz", b""),
        ("tiny-1.0-py3-none-any.whl", b"not a zip"),
        ("tiny-1;0-py3-none-any.whl", b""),
        ("tiny\n--pre-1.0-py3-none-any.whl", b""),
    ],
)
def test_files_that_are_no_wheels_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert inspected(tmp_path) == "CW-PACKAGE-REFUSED"


EVIL = "/home/ann/.bashrc = m:f"


@pytest.mark.parametrize(
    "text",
    [
        f"[console_scripts]\n{EVIL}",
        f"[gui_scripts]\r\n{EVIL}\r\n",
        f"[ console_scripts ]\n{EVIL}",
        f"[console_scripts] # why\n{EVIL}",
        f"[console_scripts]\na = b\n [other]\n{EVIL}",  # some take it for a part of `a`
        f"[console_scripts]\na = m:f\x0b[other]\n{EVIL}",
        "[console_scripts]\na = !! ../x = m:f",  # the maker of scripts looks for a name in all of it
        "[console_scripts]\n..\\x = m:f",
        f"[other]\n[console_scripts]\n{EVIL}",
        EVIL,
    ],
)
def test_a_program_whose_name_is_a_path_is_found(text: str) -> None:
    assert has_script_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# see https://example.org\n[console_scripts]\ntiny = tiny.cli:main [all]\n",
        "[console_scripts]\ntiny=tiny:main\n\n[pygments.formatters]\n/.ext = tiny:Formatter\n",
    ],
)
def test_other_programs_and_sections_are_left_alone(text: str) -> None:
    assert not has_script_path(text)
