"""The file API on /tmp and /dev/shm of a cell, against code that works on the same names (FS-1).

Controls: the same operations on names that nobody attacks succeed, and the target that is never
reached can be read by the test itself through a link of the same kind.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import ORDINARY_UID
from adversarial.test_copy_on_write_files import SECRET, SWAP, archive
from conftest import need
from interfaces import prepared_program

# Each leads out of /tmp, or to something that is no file.
PLANTED = (
    "cd /tmp; ln -s TARGET out; ln -s TARGET/f outfile; ln -s loop loop; mkfifo fifo; "
    "ln -s /proc/1/root root; ln -s ../../../../../../etc up; ln -s /workspace/in over; "
    "ln -s /proc/self/fd/0 fd; ln -s /dev/zero zero; "
    "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\""
)
REFUSED = ("out/f", "outfile", "loop", "fifo", "sock", "root/etc/passwd", "up/passwd", "over", "fd")


@pytest.fixture
def target(open_folder: Path) -> Path:
    """On the host, where no path of the sandbox may lead."""
    place = open_folder / "target"
    place.mkdir()
    (place / "f").write_text(SECRET)
    return place


@pytest.mark.requirement("FS-1", "FS-7")
def test_no_name_in_the_memory_of_a_cell_leads_out_of_it(target: Path, open_folder: Path) -> None:
    link = open_folder / "outfile"
    link.symlink_to(target / "f")
    assert link.read_text() == SECRET  # the control: such a link leads there
    with cellwall.Sandbox.create() as sandbox:
        files, codes = sandbox.files, {}
        files.write("in", "workspace")
        assert sandbox.commands.run(PLANTED.replace("TARGET", str(target))).exit_code == 0
        names = [f"/tmp/{name}" for name in (*REFUSED, "zero", "../workspace/in", "../etc/passwd")]
        names += ["/dev/shm/../zero", "/dev/zero", "/etc/passwd", "/proc/1/environ", "/", "/home"]
        for name in names:
            for operation in (files.read, lambda name: files.write(name, "x")):
                with pytest.raises(cellwall.CellwallError) as refused:
                    operation(name)
                codes[name] = refused.value.code
                assert str(open_folder) not in str(refused.value)
        for move in (("/tmp/in", "/workspace/x"), ("in", "/tmp/x"), ("/tmp/in", "/dev/shm/x")):
            with pytest.raises(cellwall.CellwallError) as refused:
                files.move(*move)
            assert refused.value.code == "CW-PATH-OUTSIDE"
        files.write("/tmp/calm", "control")
        assert sandbox.commands.run("cat /tmp/calm").stdout == "control"
        assert files.read("in") == "workspace"
    assert set(codes.values()) <= {"CW-PATH-OUTSIDE", "CW-NOT-A-FILE", "CW-PATH-INVALID"}
    assert (target / "f").read_text() == SECRET


@pytest.mark.requirement("FS-1", "FS-7")
def test_no_operation_follows_names_that_code_swaps_in_memory(target: Path) -> None:
    read: list[str] = []
    done: Counter[str] = Counter()
    unexpected: list[BaseException] = []
    with cellwall.Sandbox.create(timeout=100) as sandbox:
        files = sandbox.files
        for name in ("x/f", "x/sub/f", "y/f", "calm"):
            files.write(f"/tmp/{name}", "fine")
        works = {
            "read": lambda: read.append(files.read("/tmp/x/f")),
            "write": lambda: files.write("/tmp/x/f", "fine"),
            "write below": lambda: files.write("/tmp/x/sub/a/b", "fine"),
            "list": lambda: read.append(str(files.list("/tmp/x"))),
            "move": lambda: files.move("/tmp/x/sub", "/tmp/x/away"),
            "remove": lambda: files.remove("/tmp/x/sub"),
            "upload": lambda: files.upload(archive(), "/tmp"),
            "download": lambda: read.append(files.download("/tmp/x", skip_links=True).decode()),
            "calm": lambda: files.write("/tmp/calm", files.read("/tmp/calm")),
        }

        def attack() -> None:
            code = "import os; os.chdir('/tmp')\n" + SWAP.replace("TARGET", repr(str(target)))
            try:
                sandbox.run_code(code)
            except BaseException as error:
                unexpected.append(error)

        thread = threading.Thread(target=attack)
        thread.start()
        for _ in range(6):
            for name, work in works.items():
                try:
                    work()
                    done[name] += 1
                except cellwall.CellwallError as error:
                    done[error.code] += 1
        files.write("/tmp/stop", "")
        thread.join()
        assert unexpected == []
    assert not [text for text in read if SECRET in text]
    assert done["calm"] == 6  # the control
    assert sorted(target.iterdir()) == [target / "f"]
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


# Files of an ordinary user's sandbox, whose memory lies in a user namespace of that user.
ORDINARY = """
import cellwall
with cellwall.Sandbox.create() as sbx:
    files = sbx.files
    files.write("/tmp/a/b", "mine")
    print(sbx.commands.run("cat /tmp/a/b; echo -n made > /tmp/made; chmod 0 /tmp/a").stdout)
    print(files.read("/tmp/made"), [entry.path for entry in files.list("/tmp")])
    for name in ("/tmp/a/c", "/tmp/../etc/passwd"):
        try:
            files.write(name, "x")
        except cellwall.CellwallError as error:
            print(error.code)
"""


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("who", ["as-root", "as-ordinary-user"])
def test_operations_have_the_permissions_of_code_inside(open_folder: Path, who: str) -> None:
    need(os.geteuid() == 0, "root, to become an ordinary user")
    home, config = open_folder / "state", open_folder / "cellwall.toml"
    home.mkdir(mode=0o700)
    config.write_text("[sandbox]\ndangerously_without_cgroup = true\n")
    uid = 0 if who == "as-root" else ORDINARY_UID
    os.chown(home, uid, uid)
    done = prepared_program.run(
        [],
        code=ORDINARY,
        stdin=b"",
        env={
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(home),
            "CELLWALL_PATH": os.environ.get("CELLWALL_PATH", "auto"),
            "XDG_CONFIG_HOME": str(open_folder),
            "CELLWALL_CONFIG": str(config),
        },
        cwd="/",
        timeout_s=110,
        user=uid,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        "mine",
        "made ['/tmp/a', '/tmp/made']",
        "CW-NO-PERMISSION",
        "CW-PATH-OUTSIDE",
    ]


def test_the_source_of_an_upload_keeps_the_permissions_of_the_caller(open_folder: Path) -> None:
    own = open_folder / "own.tar"
    own.write_bytes(archive())
    own.chmod(0o600)

    def pieces():
        yield own.read_bytes()  # opened in the middle of the operation

    with cellwall.Sandbox.create() as sandbox:
        assert sandbox.files.upload(pieces(), "/dev/shm/up").files == 2
        assert sandbox.commands.run("cat /dev/shm/up/x/new").stdout == "up"
