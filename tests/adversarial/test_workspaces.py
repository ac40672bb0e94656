"""Given directories: what code may do in them, see of them, and plant in them (FS-1..4, FS-6)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.runtime import wiring
from cellwall.sandbox.linux import cgroups
from conftest import need

SECRET = "hunter2-the-secret"
OWNER = 1234


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for name in (".git/hooks", ".claude", "deep/er/keys", "deep/.ssh"):
        (place / name).mkdir(parents=True)
    for name in (".env", "deep/er/.env.production", "deep/er/keys/site.pem", "deep/.ssh/id_rsa"):
        (place / name).write_text(SECRET)
    for name in (
        ".git/config",
        ".git/hooks/pre-commit",
        ".claude/settings.json",
        ".mcp.json",
        ".bashrc",
    ):
        (place / name).write_text("mine")
    (place / "plain.txt").write_text("mine")
    return place


def tree(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): path.read_text() if path.is_file() else "/"
        for path in sorted(place.rglob("*"))
    }


def sh(command: str, place: Path, mode: str, **options: object) -> cellwall.Execution:
    return cellwall.run_code(command, language="sh", workspace=f"{place}:{mode}", **options)


# --- the three ways (FS-2)


@pytest.mark.requirement("FS-2")
def test_a_read_only_directory_refuses_every_write(project: Path) -> None:
    before = tree(project)
    attempts = "echo x > plain.txt; echo x > new; mkdir d; rm -f plain.txt; mv plain.txt b; chmod 0 plain.txt"
    done = sh(
        f"cat plain.txt; {attempts}; ln plain.txt l; touch -d 2001-01-01 plain.txt", project, "ro"
    )
    assert done.stdout == "mine"
    assert done.stderr.count("Read-only file system") == 8
    assert tree(project) == before


@pytest.mark.requirement("FS-2")
def test_a_copy_on_write_directory_stays_unchanged(project: Path) -> None:
    before = tree(project)
    done = sh(
        "echo y > plain.txt; echo x > new; rm -rf .claude; cat plain.txt new; ls -d .claude",
        project,
        "cow",
    )
    assert done.stdout == "y\nx\n"
    assert tree(project) == before


@pytest.mark.requirement("FS-2", "ISO-10")
def test_files_made_in_a_read_write_directory_belong_to_its_owner(project: Path) -> None:
    need(os.geteuid() == 0, "root, to give a directory of another user")
    os.chown(project, OWNER, OWNER)
    done = sh("echo x > new; mkdir d; echo y > d/z; ln -s z d/link; id -u", project, "rw")
    assert (done.status, done.stdout) == ("ok", "1000\n")
    made = [project / "new", project / "d", project / "d/z", project / "d/link"]
    assert [(p.lstat().st_uid, p.lstat().st_gid) for p in made] == [(OWNER, OWNER)] * 4
    assert (project / "d/z").read_text() == "y\n"


# --- secrets (FS-4)

_LOOK = """
import os
places = [os.path.join(d, n) for d, ds, fs in os.walk('.') for n in fs + ds]
for path in places + ['.env', 'deep/.ssh/id_rsa', 'deep/er/keys/site.pem', 'deep/er/.env.production']:
    for way in (lambda p: open(p, 'rb').read(),
                lambda p: open(f'/proc/self/fd/{os.open(p, os.O_PATH)}', 'rb').read(),
                lambda p: open(f'/proc/self/root/workspace/{p}', 'rb').read(),
                lambda p: (os.link(p, '/tmp/l'), open('/tmp/l', 'rb').read()),
                lambda p: (os.link(p, 'hard'), open('hard', 'rb').read()),
                lambda p: os.listdir(p)):
        try: print(path, way(path))
        except OSError: pass
for old, new in (('deep/er', 'moved'), ('deep', 'away'), ('.env', 'env'), ('away/.ssh', 'ssh')):
    try: os.rename(old, new)
    except OSError as e: print(e)
for d, ds, fs in os.walk('.'):
    for n in fs:
        try: print(d, n, open(os.path.join(d, n), 'rb').read())
        except OSError: pass
"""


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("mode", ["ro", "rw", "cow"])
def test_hidden_names_show_nothing_by_any_way(project: Path, mode: str) -> None:
    seen = subprocess.run([sys.executable, "-c", _LOOK], cwd=shutil.copytree(project, f"{project}2"), capture_output=True, text=True, check=True)  # fmt: skip
    assert SECRET in seen.stdout  # the control: the same program finds it outside
    done = cellwall.run_code(_LOOK, workspace=f"{project}:{mode}")
    assert done.status == "ok"
    assert "b'mine'" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert (project / ".env").read_text() == SECRET


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("mode", ["ro", "rw", "cow"])
def test_a_hidden_name_that_is_a_symlink_is_covered_itself(tmp_path: Path, mode: str) -> None:
    place, other = tmp_path / "p", tmp_path / "other"
    place.mkdir()
    other.write_text(SECRET)
    (place / ".env").symlink_to(other)
    done = sh(
        "cat .env; readlink .env; rm .env; mv .env x; ln -sf /etc .env; ls -A | grep '^.env$'",
        place,
        mode,
    )
    assert done.stdout.split()[-1:] == [".env"]
    assert str(other) not in done.stdout
    assert os.readlink(place / ".env") == str(other)


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("name", [".bashrc", ".git", ".git/hooks"])
def test_a_read_only_name_that_is_a_symlink_refuses_a_read_write_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / ".git").mkdir() if "/" in name else None
    (tmp_path / "real").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "real")
    refused = cellwall.run_code("print(1)", workspace=f"{tmp_path}:rw")
    assert (refused.status, refused.outcome.error and refused.outcome.error.code) == (
        "error",
        "CW-WORKSPACE-SYMLINK",
    )
    assert cellwall.run_code("print(1)", workspace=f"{tmp_path}:ro").status == "ok"


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("wall_s", [2, pytest.param(6, marks=pytest.mark.long)])
def test_a_second_run_that_renames_the_way_cannot_uncover_a_hidden_name(
    tmp_path: Path, wall_s: int
) -> None:
    """Two read-write runs at once: one flips a directory's name while the other is being built."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.env").write_text(SECRET)
    flip = "import os, sys\nwhile True:\n    try: os.rename('a', 'x'); os.rename('x', 'a')\n    except OSError: pass"
    look = "for n in ('a', 'x') * 50:\n    try: print(open(n + '/.env').read())\n    except OSError: pass"
    flipper = threading.Thread(
        target=cellwall.run_code,
        args=(flip,),
        kwargs={"workspace": f"{tmp_path}:rw", "timeout": wall_s, "limits": {"cpu_s": 30}},
    )
    flipper.start()
    seen = ""
    while flipper.is_alive() and SECRET not in seen:
        seen = cellwall.run_code(look, workspace=f"{tmp_path}:rw").stdout
    flipper.join()
    assert SECRET not in seen
    assert [p.read_text() for p in tmp_path.rglob(".env")] == [
        SECRET
    ]  # nor was the user's own moved out


# --- what the host obeys (FS-4)

_PLANT = """
import os
names = ['.git/hooks/pre-commit', '.git/hooks/new', '.git/config', '.claude/settings.json', '.mcp.json',
         '.bashrc', '.claude/new', '.vscode/tasks.json', '.profile', '.husky/x', '.zshrc', '.gitmodules']
def write(p): os.makedirs(os.path.dirname(p) or '.', exist_ok=True); open(p, 'w').write('EVIL')
def replace(p): open('evil', 'w').write('EVIL'); os.rename('evil', p)
def rename_above(p):
    top = p.split('/')[0]
    os.rename(top, 'gone')
    write(p)
def link(p): open('evil', 'w').write('EVIL'); os.remove(p); os.link('evil', p)
def through_a_link(p):
    os.symlink(os.path.dirname(p) or '.', 'way') if not os.path.lexists('way') else None
    open(os.path.join('way', os.path.basename(p)), 'w').write('EVIL')
def exchange(p):
    import ctypes
    open('evil', 'w').write('EVIL')
    if ctypes.CDLL(None, use_errno=True).renameat2(-100, b'evil', -100, p.encode(), 2): raise OSError(ctypes.get_errno())
for p in names:
    for way in (write, replace, link, through_a_link, exchange, os.remove, os.rmdir, rename_above):
        try: way(p)
        except OSError: pass
"""


@pytest.mark.requirement("FS-4")
def test_names_the_host_obeys_can_be_neither_changed_nor_planted(project: Path) -> None:
    before = tree(project)
    control = Path(shutil.copytree(project, f"{project}2"))
    subprocess.run([sys.executable, "-c", _PLANT], cwd=control, check=True)
    assert "EVIL" in tree(control).values()  # the control
    assert tree(control).get(".git/config") != "mine"
    done = cellwall.run_code(_PLANT, workspace=f"{project}:rw")
    assert (done.status, done.stderr) == ("ok", "")
    after = tree(project)
    assert {name: after.get(name) for name in before} == before
    assert set(after) - set(before) <= {"evil", "way", "way/"}


@pytest.mark.requirement("FS-4")
def test_new_protected_names_further_down_are_moved_out_after_the_run(project: Path) -> None:
    before = tree(project)
    done = sh(
        "mkdir -p new/.git/hooks .GIT/hooks sub/.Claude; echo e | tee new/.git/hooks/x .GIT/hooks/x sub/.Claude/s a.lnk keep >/dev/null",
        project, "rw",
    )  # fmt: skip
    assert done.status == "ok"
    after = tree(project)
    left = {
        name
        for name in set(after) - set(before)
        if "hooks" in name or "laude" in name or "lnk" in name
    }
    assert left == set()
    assert after["keep"] == "e\n"
    assert len(done.outcome.findings) >= 3


@pytest.mark.requirement("FS-4", "FS-3")
@pytest.mark.parametrize("end", ["cancelled", "callback fails", "wall limit"])
def test_what_was_planted_is_moved_out_however_the_run_ends(project: Path, end: str) -> None:
    plant = "mkdir -p new/.git/hooks; echo e > new/.git/hooks/pre-commit; echo e > a.lnk; echo planted; sleep 60"

    async def run() -> None:
        with anyio.CancelScope() as scope:
            async with cellwall.AsyncSandbox.create(
                workspace=f"{project}:rw", timeout=2 if end == "wall limit" else 60
            ) as sandbox:

                def planted(_: str) -> None:
                    if end == "cancelled":
                        scope.cancel()
                    if end == "callback fails":
                        raise ValueError(end)

                try:
                    await sandbox.commands.run(plant, on_stdout=planted)
                except* ValueError:
                    assert end == "callback fails"

    anyio.run(run)
    found = [name for name in tree(project) if name.startswith("new/.git/hooks") or name == "a.lnk"]
    assert found == []


@pytest.mark.requirement("FS-4")
def test_protection_holds_until_the_last_of_two_runs_ends_and_leaves_no_placeholder(
    tmp_path: Path,
) -> None:
    started = threading.Event()
    ended: list[cellwall.Execution] = []
    first = threading.Thread(
        target=lambda: ended.append(
            cellwall.run_code(
                "import os, sys\nprint('up', flush=True); sys.stdin.read() if 0 else None\n"
                "while not os.path.exists('go'): pass\n"
                "try: os.makedirs('.git/hooks'); open('.git/hooks/x', 'w'); print('planted')\nexcept OSError as e: print('kept')",
                workspace=f"{tmp_path}:rw", timeout=60, on_stdout=lambda _: started.set(),
            )
        )
    )  # fmt: skip
    first.start()
    assert started.wait(60)
    second = sh("mkdir -p .git/hooks/x; ls -A", tmp_path, "rw")
    assert ".git" in second.stdout.split()  # a placeholder, seen inside
    assert (tmp_path / ".git").is_dir()  # and still there for the first
    (tmp_path / "go").touch()
    first.join()
    assert ended[0].stdout == "up\nkept\n"
    assert os.listdir(tmp_path) == ["go"]


# --- races and roots (FS-1)


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("rounds", [8, pytest.param(25, marks=pytest.mark.long)])
def test_a_workspace_swapped_for_a_symlink_never_shows_what_it_points_to(
    tmp_path: Path, rounds: int
) -> None:
    secret, place, spare = (tmp_path / name for name in ("secret", "place", "spare"))
    secret.mkdir()
    (secret / "token").write_text(SECRET)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(secret)
    flip = f"import os, ctypes\nc = ctypes.CDLL(None).renameat2\nos.rename('real', {str(place)!r})\nwhile True: c(-100, b'link', -100, {os.fsencode(place)!r}, 2)"
    with subprocess.Popen([sys.executable, "-c", flip], cwd=tmp_path) as flipper:
        try:
            naive, until = set[str](), time.monotonic() + 60  # the other process may begin late
            while SECRET not in naive and time.monotonic() < until:
                naive.add(_naive(place))
            # A busy host may need longer for a start than a run may take by default.
            seen = [
                sh("cat token", place, mode, timeout=120)
                for mode in ("ro", "rw", "cow", "ro") * rounds
            ]
        finally:
            flipper.send_signal(signal.SIGKILL)
    assert SECRET in naive  # the control: a plain open is led astray
    assert {SECRET in run.stdout for run in seen} == {False}
    assert {run.status.value for run in seen} <= {"failed", "error"}
    assert "failed" in {run.status.value for run in seen}  # some did run, in the real directory
    assert not spare.exists()


def _naive(place: Path) -> str:
    try:
        return (place / "token").read_text()
    except OSError:
        return ""


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    "directory",
    ["/", "/etc", "/etc/ssl", "/home", "~", "/proc", "/proc/self/cwd", "/usr", "/tmp", "/dev", "/sys/fs", "/run",
     "{home}", "{home}/..", "{home}/runs", "{tmp}/file", "{tmp}/link", "{tmp}/missing", "{tmp}/a\0b", "",
     "{tmp}/" + "x" * 4096, "{tmp}/\udcff\udcfe", "{tmp}/\ud800"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["ro", "rw"])
@pytest.mark.only_on("cold", reason="refused before a cell is made")
def test_silly_roots_are_refused_in_words(
    directory: str, mode: str, tmp_path: Path, state_home: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    place = (
        os.path.expanduser(directory).replace("{home}", state_home).replace("{tmp}", str(tmp_path))
    )
    refused = cellwall.run_code("print(1)", workspace=f"{place}:{mode}")
    error = refused.outcome.error
    code = "CW-NOT-TEXT" if "\ud800" in directory else "CW-WORKSPACE-REFUSED"
    assert (refused.status, refused.stdout, error and error.code) == ("error", "", code)
    with pytest.raises(cellwall.CellwallError):
        cellwall.Sandbox.create(workspace=f"{place}:{mode}")


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    "name", ["new\nline", "sp ace", "\udcff\udcfe", "-rf", "a:b", "'\"$(id)", "x" * 250, "é\u202e"]
)
@pytest.mark.parametrize("mode", ["ro", "rw", "cow"])
def test_strange_but_possible_names_work(name: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "plain.txt").write_text("mine")
    done = sh("cat plain.txt", tmp_path / name, mode)
    assert (done.status, done.stdout) == ("ok", "mine")


@pytest.mark.requirement("FS-1", "FS-3")
def test_ten_thousand_files_and_a_deep_tree_are_settled_and_removed(state_home: str) -> None:
    wiring.shared_app()
    before = os.listdir(f"{state_home}/workspaces")  # of other tests: changes that are kept
    with cellwall.Sandbox.create() as sandbox:
        done = sandbox.run_code(
            "import os\nfor n in range(10_000): open(f'f{n}', 'x').close()\n"
            "for n in range(300): os.mkdir('d'); os.chdir('d')",
            timeout=300,
        )
        assert (done.status, done.outcome.findings) == ("ok", ())
        assert len(os.listdir(f"{state_home}/workspaces")) == len(before) + 1
    assert os.listdir(f"{state_home}/workspaces") == before
