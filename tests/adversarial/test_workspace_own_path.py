"""A workspace shown at its own path as well: the same walls by both paths (FS-1, FS-2, FS-4)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.sandbox.linux import cgroups
from conftest import need
from interfaces import prepared_program

SECRET = "hunter2-the-secret"
pytestmark = pytest.mark.only_on("cold", reason="a template's root has no new mount points")


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@pytest.fixture(params=["below /tmp", "elsewhere"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Below /tmp the mount point lies in the cell's own /tmp, elsewhere in its sealed root."""
    if request.param == "below /tmp":
        place = tmp_path / "my 'own' $(id) project"
        place.mkdir()
        yield _filled(place)
        return
    need(os.access("/srv", os.W_OK), "a directory outside of /tmp that the test may write to")
    with tempfile.TemporaryDirectory(dir="/srv", prefix="cellwall-") as folder:
        yield _filled(Path(folder))


def _filled(place: Path) -> Path:
    (place / ".git/hooks").mkdir(parents=True)
    (place / "sub").mkdir()
    (place / ".env").write_text(SECRET)
    (place / "plain.txt").write_text("mine")
    return place


def inside(
    place: Path, script: str, *, mode: str = "rw", cwd: str = "", limits: tuple[str, ...] = ()
) -> dict[str, object]:
    words = ["--workspace", f"{place}:{mode}", "--own-path", "--cwd", cwd or str(place), "--json"]
    words = ["run", *words, *limits, "--", "bash", "-c", script]
    done = prepared_program.run(words, stdin=b"", env=os.environ, timeout_s=120)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.requirement("FS-1")
def test_programs_see_and_print_the_paths_of_the_host(project: Path) -> None:
    script = 'pwd -P; python3 -c "import os; print(os.getcwd())"; cat "$OLDPWD/x" "$PWD/plain.txt"'
    told = inside(project, script)
    assert str(told["stdout"]).splitlines() == [str(project), str(project), "mine"]
    below = inside(project, "pwd -P; echo new > made.txt", cwd=str(project / "sub"))
    assert below["stdout"] == f"{project / 'sub'}\n"
    assert (project / "sub/made.txt").read_text() == "new\n"


@pytest.mark.requirement("FS-4")
def test_protected_names_are_covered_by_both_paths(project: Path) -> None:
    for place in (str(project), "/workspace"):
        script = (
            "cat .env; echo evil > .git/hooks/pre-commit; mv .git away; ln .env copy; "
            "echo evil > .env; rm -f .env; umount .env; mkdir -p x && mv x .git/hooks"
        )
        told = inside(project, script, cwd=place)
        assert SECRET not in json.dumps(told)
    assert (project / ".env").read_text() == SECRET
    assert os.listdir(project / ".git/hooks") == []


@pytest.mark.requirement("FS-2")
def test_a_read_only_directory_is_read_only_by_both_paths(project: Path) -> None:
    for place in (str(project), "/workspace"):
        told = inside(
            project, "echo x > new; echo x > plain.txt; rm plain.txt", mode="ro", cwd=place
        )
        assert str(told["stderr"]).count("Read-only file system") == 3
    assert (project / "plain.txt").read_text() == "mine"
    assert inside(project, "cat plain.txt", mode="ro")["stdout"] == "mine"  # the control


@pytest.mark.requirement("FS-2")
def test_what_is_written_by_either_path_is_one_copy_on_write(project: Path) -> None:
    told = inside(project, "echo y > plain.txt; cat /workspace/plain.txt", mode="cow")
    assert told["stdout"] == "y\n"
    assert (project / "plain.txt").read_text() == "mine"


@pytest.mark.requirement("FS-1", "ISO-2")
def test_nothing_beside_the_project_appears_with_it(project: Path) -> None:
    beside = project.parent / "beside-cellwall-test"
    beside.write_text(SECRET)
    try:
        script = 'ls -A ..; cat "../beside-cellwall-test"; touch ../planted; ls /root /home'
        told = inside(project, script)
        assert str(told["stdout"]).splitlines() == [project.name]
        assert SECRET not in json.dumps(told)
        assert not (project.parent / "planted").exists()
    finally:
        beside.unlink()


_NAMELESS = """
import os, signal
fds = [os.open('.', os.O_RDWR | os.O_TMPFILE) for _ in range(16)]
for fd in fds: os.write(fd, bytes(16 << 20))
signal.pause()
"""


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("top", ["/opt", "/libfoo"])
def test_files_without_a_name_count_where_the_hosts_programs_lie(top: str) -> None:
    above = Path(top)
    need(os.access(above if above.is_dir() else "/", os.W_OK), f"a writable {top}")
    is_made = not above.is_dir()
    above.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=top, prefix="cellwall-") as folder:
            place = Path(folder)
            (place / "fill.py").write_text(_NAMELESS)
            told = inside(place, "exec python3 fill.py", limits=("--disk", "64m"))
            assert told["status"] == "limit", told
            assert told["limit"] == "disk"
    finally:
        if is_made:
            above.rmdir()
