"""The file API on copy-on-write, against code that works on the same names (FS-1, FS-2).

Controls: the same operations on names that nobody attacks succeed, and the target that is never
reached can be read and written by the test itself.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections import Counter
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import ORDINARY_UID
from conftest import need
from interfaces import prepared_program

SECRET = "hunter2-the-secret"

# Makes `x` a directory, a link out of the workspace, a FIFO, and a directory with links out of it.
SWAP = """
import os, time
def go(work, *given):
    try: work(*given)
    except OSError: pass
while not os.path.exists('stop'):
    go(os.rename, 'x', 'x0')
    for target in (TARGET, '../../../../../../..' + TARGET, '/proc/self/root' + TARGET, '/proc/1/cwd'):
        go(os.symlink, target, 'x'); go(os.unlink, 'x')
    go(os.mkfifo, 'x'); go(os.unlink, 'x')
    go(os.mkdir, 'x')
    go(os.symlink, TARGET + '/f', 'x/f'); go(os.symlink, TARGET, 'x/sub')
    go(os.rename, 'x', 'y/x'); go(os.rename, 'x0', 'x')
    go(os.mkdir, 'x'); go(os.mkdir, 'x/sub')
    go(os.rename, 'x/sub', 'y/sub'); go(os.symlink, '../x', 'y/sub/loop'); go(os.rename, 'y/sub', 'x/sub')
"""


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in ("x/new", "x/sub/new"):
            info = tarfile.TarInfo(name)
            info.size = 2
            made.addfile(info, io.BytesIO(b"up"))
    return out.getvalue()


def look(place: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(place))] = (status.st_ino, status.st_mode, status.st_mtime_ns)
    return found


@pytest.fixture
def project(open_folder: Path) -> Path:
    place = open_folder / "project"
    for name in ("x/sub", "y"):
        (place / name).mkdir(parents=True)
    for name in ("x/f", "x/sub/f", "calm"):
        (place / name).write_text("fine")
    return place


@pytest.fixture
def target(open_folder: Path) -> Path:
    """On the host, beside the project, where no path of the workspace may lead."""
    place = open_folder / "target"
    place.mkdir()
    (place / "f").write_text(SECRET)
    return place


@pytest.mark.requirement("FS-1", "FS-2")
def test_no_operation_follows_names_that_code_swaps_under_it(project: Path, target: Path) -> None:
    before = look(project), look(target)
    read: list[str] = []
    done: Counter[str] = Counter()
    unexpected: list[BaseException] = []
    with cellwall.Sandbox.create(workspace=f"{project}:cow", timeout=100) as sandbox:
        files = sandbox.files
        works = {
            "read": lambda: read.append(files.read("x/f")),
            "read below": lambda: read.append(files.read("x/sub/f")),
            "write": lambda: files.write("x/f", "fine"),
            "write below": lambda: files.write("x/sub/a/b", "fine"),
            "list": lambda: read.append(str(files.list("x"))),
            "move": lambda: files.move("x/sub", "x/away"),
            "remove": lambda: files.remove("x/sub"),
            "upload": lambda: files.upload(archive()),
            "download": lambda: read.append(files.download("x", skip_links=True).decode()),
            "calm": lambda: files.write("calm", files.read("calm")),
        }

        def attack() -> None:
            try:
                sandbox.run_code(SWAP.replace("TARGET", repr(str(target))))
            except BaseException as error:
                unexpected.append(error)

        thread = threading.Thread(target=attack)
        thread.start()
        for _ in range(8):
            for name, work in works.items():
                try:
                    work()
                    done[name] += 1
                except cellwall.CellwallError as error:
                    done[error.code] += 1
        files.write("stop", "")
        thread.join()
        assert unexpected == []
    assert not [text for text in read if SECRET in text]
    assert (look(project), look(target)) == before
    assert done["calm"] == 8  # the control
    assert (target / "f").read_text() == SECRET
    assert set(done) - works.keys() <= {
        "CW-PATH-OUTSIDE",
        "CW-NOT-FOUND",
        "CW-NOT-A-FILE",
        "CW-NOT-A-DIRECTORY",
        "CW-NOT-EMPTY",
        "CW-ALREADY-EXISTS",
        "CW-IN-USE",
        "CW-PATH-INVALID",
    }


@pytest.mark.requirement("FS-1", "FS-7")
def test_what_is_no_file_neither_hangs_nor_leads_anywhere(project: Path, target: Path) -> None:
    made = (
        f"ln -s {target} out; ln -s {target}/f outfile; ln -s loop loop; mkfifo fifo; "
        "ln -s /proc/1/root root; ln -s ../../../../../../etc up; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\""
    )
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sandbox:
        assert sandbox.commands.run(made).exit_code == 0
        files, codes = sandbox.files, {}
        for name in ("out/f", "outfile", "loop", "fifo", "sock", "root/etc/passwd", "up/passwd"):
            for operation in (files.read, lambda name: files.write(name, "x")):
                with pytest.raises(cellwall.CellwallError) as refused:
                    operation(name)
                codes[name] = refused.value.code
        files.write("calm", "control")
        assert sandbox.commands.run("cat calm").stdout == "control"
    assert set(codes.values()) == {"CW-PATH-OUTSIDE", "CW-NOT-A-FILE"}
    assert (target / "f").read_text() == SECRET


# One sandbox of an ordinary user, whose overlay lies in a user namespace of its own.
ORDINARY = """
import sys, cellwall
project = sys.argv[1]
with cellwall.Sandbox.create(workspace=project + ":cow") as sbx:
    files = sbx.files
    print(files.read("calm"))
    files.write("calm", "mine")
    print(files.exists("made"), sbx.commands.run("cat calm; echo -n made > made; chmod 0 y").stdout)
    files.move("x", "moved")
    print(files.read("made"), [entry.path for entry in files.list()])
    print(sbx.run_code("open('moved/sub/f').read()").value)
    for work in (lambda: files.write("y/a", "x"), lambda: files.read("../target/f")):
        try:
            work()
        except cellwall.CellwallError as error:
            print(error.code)
"""


@pytest.mark.requirement("FS-2", "FS-7")
@pytest.mark.only_on("cold", reason="an ordinary user cannot give a directory to a warm cell")
def test_an_ordinary_user_works_on_the_same_view(
    project: Path, target: Path, open_folder: Path
) -> None:
    need(os.geteuid() == 0, "root, to become an ordinary user")
    home = open_folder / "state"
    home.mkdir(mode=0o700)
    config = open_folder / "cellwall.toml"
    config.write_text("[sandbox]\ndangerously_without_cgroup = true\n")
    for path in (home, project, *project.rglob("*")):
        os.chown(path, ORDINARY_UID, ORDINARY_UID)
    before = look(project), look(target)
    done = prepared_program.run(
        [str(project)],
        code=ORDINARY,
        stdin=b"",
        env={
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(home),
            "XDG_CONFIG_HOME": str(open_folder),
            "CELLWALL_CONFIG": str(config),
        },
        cwd="/",
        timeout_s=110,
        user=ORDINARY_UID,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        "fine",
        "False mine",
        "made ['calm', 'made', 'moved', 'y']",
        "fine",
        "CW-NO-PERMISSION",
        "CW-PATH-OUTSIDE",
    ]
    assert (look(project), look(target)) == before
