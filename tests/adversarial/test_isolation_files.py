"""Files of the host: not to be seen, read, linked or written (ISO-2, ISO-6)."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import (
    ORDINARY_UID,
    WHO,
    Verdicts,
    attack_names,
    inside,
    judge,
    outside,
    throwaway,
)

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]

# An overlay above the whole root: the control may write everywhere and changes nothing.
COPY_OF_THE_HOST = """
set -e
cd /tmp
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount --rbind /proc root/proc
mount -t tmpfs tmpfs root/dev
mknod -m 666 root/dev/null c 1 3 2>/dev/null || touch root/dev/null
for place in /work /var /home; do if mountpoint -q $place; then mount --rbind $place root$place; fi; done
exec chroot root "$@"
"""


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, object]]]:
    """A secret of the host, ways to it that lie in the workspace, and a listening socket in /run."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        sockets = []

        def prepare(who: str) -> dict[str, object]:
            base = Path(folder, who)
            if not base.exists():
                base.mkdir(mode=0o755)
                (base / "workspace").mkdir(mode=0o755)
                mark = f"secret-of-the-host-{os.getpid()}"
                for name in ("secret", "secret.spare"):
                    (base / name).write_text(mark)
                    (base / name).chmod(0o600)
                (base / "workspace" / "link").symlink_to(base / "secret")
                server = socket.socket(socket.AF_UNIX)
                server.bind(str(base / "docker.sock"))
                server.listen()
                sockets.append(server)
                if who.startswith("as-ordinary-user") and os.geteuid() == 0:
                    for path in (base, *base.rglob("*")):
                        os.chown(path, ORDINARY_UID, ORDINARY_UID, follow_symlinks=False)
            return {
                "mark": f"secret-of-the-host-{os.getpid()}",
                "secret": str(base / "secret"),
                "socket": str(base / "docker.sock"),
            }

        yield prepare
        for server in sockets:
            server.close()


@pytest.mark.requirement("ISO-2", "ISO-6")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("files"))
@pytest.mark.table("name")
@pytest.mark.smoke
def test_file_of_the_host_is_out_of_reach(
    name: str, who: str, path: str, host: Callable[[str], dict[str, object]], remember: Remember
) -> None:
    def without_walls() -> Verdicts:
        facts = host("control")
        agent = ("env", f"SSH_AUTH_SOCK={facts['socket']}")
        workspace = str(Path(str(facts["secret"])).with_name("workspace"))
        parent = os.getpid()
        return outside(
            "files", prefix=agent, control=True, workspace=workspace, parent=parent, **facts
        )

    def within() -> Verdicts:
        facts = host(f"{who}-{path}")
        workspace = Path(str(facts["secret"])).with_name("workspace")
        return inside("files", who=who, options={"workspace": f"{workspace}:rw"}, **facts)

    judge(name, remember("files", without_walls), remember(("files", who, path), within))


@pytest.mark.requirement("ISO-1", "ISO-2", "ISO-6")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("writes"))
@pytest.mark.table("name")
def test_nothing_outside_the_workspace_can_be_written(
    name: str, who: str, path: str, remember: Remember
) -> None:
    prefix = (*throwaway(), "sh", "-c", COPY_OF_THE_HOST, "sh")
    control = remember("writes", lambda: outside("writes", prefix=prefix, disposable=True))
    verdicts = remember(("writes", who, path), lambda: inside("writes", who=who, options={}))
    judge(name, control, verdicts)


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("who", WHO)
def test_landlock_refuses_what_file_modes_and_mounts_allow(
    who: str, path: str, remember: Remember
) -> None:
    """These files are the process's own and /proc is mounted writable: no other wall is there."""
    verdicts = remember(("writes", who, path), lambda: inside("writes", who=who, options={}))
    own = {name: word for name, word in verdicts.items() if name.startswith("landlock-")}
    assert own == dict.fromkeys(own, ("refused", "EACCES"))
    assert len(own) == 4


@pytest.mark.requirement("ISO-2")
def test_root_shows_only_what_programs_need(path: str) -> None:
    ran = cellwall.run_code(
        "import os\n"
        "places = ('/', '/dev', '/code', '/skills', '/workspace', '/tmp', '/opt', '/opt/deno')\n"
        "{place: sorted(os.listdir(place)) for place in places if os.path.exists(place)}\n"
    )
    # A template does not know which programs will run in its cells, and has the one of Deno.
    deno = {"/opt": ["deno"], "/opt/deno": ["deno"]} if path == "warm" else {}
    aliases = sorted(
        name
        for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
        if Path("/", name).exists()
    )
    root = {".cellwall", "code", "dev", "etc", "proc", "skills", "tmp", "usr"}
    root |= {"workspace", *aliases}
    root |= {"opt"} if deno else set()
    assert ran.value == {
        "/": sorted(root),
        **deno,
        "/dev": sorted(
            [
                "fd",
                "full",
                "null",
                "ptmx",
                "pts",
                "random",
                "shm",
                "stderr",
                "stdin",
                "stdout",
                "urandom",
                "zero",
            ]
        ),
        "/code": [],
        "/skills": [],
        "/workspace": [],
        "/tmp": [],
    }
    assert set(os.listdir("/")) - root, "the host has more than that"


@pytest.mark.requirement("ISO-2")
def test_etc_holds_nothing_but_the_named_files() -> None:
    ran = cellwall.run_code("import os\nsorted(os.listdir('/etc'))\n")
    allowed = {
        "alternatives",
        "fonts",
        "group",
        "hosts",
        "ld.so.cache",
        "localtime",
        "nsswitch.conf",
    }
    allowed |= {"mime.types", "passwd", "pip.conf", "protocols", "resolv.conf", "services", "ssl"}
    extra = {n for n in ran.value if n not in allowed and not n.startswith(("java-", "openjdk"))}
    assert extra == set()
    # Leads to the files of an egress session, and this cell has none.
    assert not cellwall.run_code("import os; os.path.exists('/etc/resolv.conf')").value
    assert len(os.listdir("/etc")) > len(ran.value)


@pytest.mark.requirement("ISO-2")
def test_every_mount_but_the_cells_own_is_read_only() -> None:
    ran = cellwall.run_code(
        "[line.split()[4] for line in open('/proc/self/mountinfo') if line.split()[5].split(',')[0] == 'rw']\n"
    )
    own = {"/tmp", "/dev/shm", "/dev/pts", "/workspace", "/proc"}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
    assert set(ran.value) <= own | devices
    assert own <= set(ran.value)


@pytest.mark.requirement("ISO-6")
def test_code_that_swaps_links_never_gets_a_file_of_the_host_through_the_file_api(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    work = tmp_path / "work"
    work.mkdir()
    with cellwall.Sandbox.create(workspace=f"{work}:rw") as sandbox:
        done = sandbox.run_code(f"import os\nos.symlink({str(secret)!r}, '/workspace/bait')\n")
        assert done.exit_code == 0
        assert (work / "bait").read_text() == "of the host", "outside, the link leads there"
        with pytest.raises(cellwall.CellwallError):
            sandbox.files.read("bait")


@pytest.mark.requirement("ISO-6")
def test_very_deep_tree_in_the_workspace_neither_breaks_nor_stays(state_home: str) -> None:
    with cellwall.Sandbox.create() as sandbox:
        made = sandbox.run_code(
            "import os\n"
            "os.chdir('/workspace')\n"
            "for _ in range(3000):\n"
            "    os.mkdir('d' * 20)\n"
            "    os.chdir('d' * 20)\n"
        )
        # Whether such a tree is a limit or not: it ends as a value, never as an exception (ERR-1).
        assert made.status.value in ("ok", "limit", "error")
    assert sandbox.id not in os.listdir(Path(state_home, "workspaces"))


@pytest.mark.requirement("ISO-6")
def test_hostile_file_names_in_the_workspace_neither_break_nor_stay(state_home: str) -> None:
    names = [
        b"\xff\xfe",
        b"a\nb",
        b"-rf",
        b"\x1b[2J",
        b"\xed\xa0\x80.lnk",
        b"x" * 255,
        b"%s%n",
        b'"\\',
    ]
    with cellwall.Sandbox.create() as sandbox:
        made = sandbox.run_code(
            "import os\n"
            f"for name in {names!r}:\n"
            "    open(b'/workspace/' + name, 'w').close()\n"
            "os.mkdir('/workspace/closed')\n"
            "open('/workspace/closed/file', 'w').close()\n"
            "os.chmod('/workspace/closed', 0)\n"
            "os.mkfifo('/workspace/pipe')\n"
        )
        assert made.status.value == "ok", made.error
        json.dumps(
            [entry.path if hasattr(entry, "path") else str(entry) for entry in sandbox.files.list()]
        )
        assert sandbox.run_code("2 + 2").value == 4
    assert sandbox.id not in os.listdir(Path(state_home, "workspaces"))
