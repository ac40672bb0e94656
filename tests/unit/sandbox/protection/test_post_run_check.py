"""What code plants in a directory it may write is moved out after the run (FS-3, FS-4)."""

from __future__ import annotations

import os
import re
import stat
import tempfile

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.outcomes import Finding
from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.protection import quarantine
from cellwall.sandbox.protection.post_run_check import Baseline, check_directory
from cellwall.sandbox.protection.protected_paths import scan

RULES = WriteLimits(
    max_file_bytes=1 << 20,
    max_total_bytes=1 << 24,
    max_files=1000,
    blocked_extensions=frozenset({"exe"}),
)


class Ground:
    """A workspace, the quarantine beside it, and a run that is about to begin."""

    def __init__(self, base):
        self.path, self.quarantine = base / "ws", base / "quarantine"
        self.path.mkdir()
        self.ws = FileTree.open(self.path)
        self.before = ()
        self.started_ns = 0

    def write(self, name, data=b"", mode=0o644):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)

    def begin(self):
        self.before = scan(self.ws, load(), max_entries=1000)
        # The next tick of the file system's clock: what is older was there before.
        probe = self.path.parent / "probe"
        probe.touch()
        first_ns = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == first_ns:
            probe.touch()
        self.started_ns = probe.stat().st_ctime_ns

    def settle(self, **options):
        options = {"limits": RULES, "quarantine_dir": self.quarantine} | options
        baseline = Baseline(before=self.before, started_ns=self.started_ns)
        findings = check_directory(self.ws, baseline, protection=load(), **options)
        assert {finding.category for finding in findings} <= {"workspace"}
        return [
            (finding.severity, re.sub(r"'[0-9a-f]{12}-", "'*-", finding.message))
            for finding in findings
        ]

    def quarantined(self):
        kept = set(os.listdir(self.quarantine)) - {quarantine.RECORDS}
        return sorted(re.sub(r"^[0-9a-f]{12}-", "", name) for name in kept)

    def files(self):
        return sorted(step.path for step in self.ws.walk(max_entries=10_000))


@pytest.fixture
def ground(tmp_path):
    made = Ground(tmp_path)
    with made.ws:
        yield made


def moved(path, why="is a protected name"):
    name = path.rpartition("/")[2]
    return (
        "medium",
        f"{path!r} {why}; it was moved to quarantine as '*-{name}' (cellwall quarantine list)",
    )


@pytest.mark.requirement("FS-3", "FS-4")
def test_planted_names_and_blocked_files_are_moved_out_and_the_users_own_stay(ground):
    ground.write(".env", b"KEY=1")
    ground.write("setup.exe", b"the user's")
    ground.write(".git/hooks/sample", b"the user's")
    ground.write("src/main.py", b"")
    ground.begin()
    ground.write("deep/er/.git/hooks/pre-commit", b"evil", mode=0o755)
    ground.write(".claude/settings.json", b"{}")
    ground.write("src/.envrc", b"evil")
    ground.write("src/tool.EXE", b"MZ")
    ground.write("src/fine.py", b"")
    (ground.path / ".vscode").symlink_to("/etc")
    assert ground.settle() == [
        moved(".claude"),
        moved(".vscode"),
        moved("deep/er/.git/hooks"),
        moved("src/.envrc"),
        moved("src/tool.EXE", "has a blocked extension"),
    ]
    assert ground.quarantined() == [".claude", ".envrc", ".vscode", "hooks", "tool.EXE"]
    assert stat.S_IMODE(ground.quarantine.stat().st_mode) == 0o700
    left = [".env", ".git", ".git/hooks", ".git/hooks/sample", "deep", "deep/er", "deep/er/.git"]
    assert ground.files() == [*left, "setup.exe", "src", "src/fine.py", "src/main.py"]
    assert ground.settle() == []


@pytest.mark.requirement("FS-4")
def test_a_new_directory_under_an_old_protected_path_is_seen_as_new(ground):
    ground.write(".git/hooks/sample", b"the user's")
    ground.begin()
    (ground.path / ".git").rename(ground.path / "aside")
    ground.write(".git/hooks/post-checkout", b"evil", mode=0o755)
    assert ground.settle() == [moved(".git/hooks")]


@pytest.mark.requirement("FS-4")
def test_a_users_secret_that_moved_with_its_directory_stays(ground):
    ground.write("app/.env", b"KEY=1")
    ground.begin()
    (ground.path / "app").rename(ground.path / "renamed")
    assert ground.settle() == []
    assert ground.files() == ["renamed", "renamed/.env"]


@pytest.mark.requirement("FS-4")
def test_set_id_bits_of_new_files_are_cleared(ground):
    ground.write("old", mode=0o4755)
    ground.begin()
    ground.write("new", mode=0o6755)
    assert ground.settle() == [
        ("medium", "'new' had a set-user-id or set-group-id bit; it was cleared")
    ]
    modes = [stat.S_IMODE((ground.path / name).stat().st_mode) for name in ("old", "new")]
    assert modes == [0o4755, 0o755]


@pytest.mark.requirement("FS-3")
def test_sizes_and_counts_over_the_limit_are_told(ground):
    ground.write("a", b"x" * 20_000)
    ground.write("b", b"")
    rules = WriteLimits(max_file_bytes=10_000, max_total_bytes=8_000, max_files=1)
    told = ground.settle(limits=rules)
    assert [re.sub(r"\d{2,}", "N", message) for _, message in told] == [
        "'a' is larger than N bytes",
        "the workspace holds N bytes, limit N",
        "the workspace holds 2 files, limit 1",
    ]


@pytest.mark.requirement("FS-4", "FS-8")
def test_a_check_that_is_not_completed_is_an_error_and_has_moved_out_what_it_found(ground):
    ground.begin()
    for number in range(50):
        ground.write(f"a/{number}")
    ground.write("z/.envrc", b"evil")
    with pytest.raises(WorkspaceError) as caught:
        ground.settle(max_entries=20)
    assert caught.value.code == "CW-WORKSPACE-UNCHECKED"
    assert "'a'" in caught.value.message
    assert ground.quarantined() == [".envrc"]


@pytest.mark.slow
@pytest.mark.requirement("FS-4", "FS-8")
def test_a_flood_of_names_in_old_and_new_directories_does_not_hide_a_plant(ground):
    for number in range(40):
        ground.write(f"old{number}/{number}")
    ground.begin()
    for number in range(900):
        ground.write(f"flood/{number}")
    ground.write("z/z/.envrc", b"evil")
    steps = ground.ws.walk(
        max_entries=10_000, order=lambda s: (s.st_ctime_ns < ground.started_ns, s.st_size)
    )
    seen = [step.path for step in steps]
    assert seen.index("z/z/.envrc") < min(seen.index("flood/0"), seen.index("old0/0"))
    assert ground.settle() == [moved("z/z/.envrc")]


@pytest.mark.requirement("FS-4")
def test_closing_a_directory_does_not_hide_a_plant(ground):
    ground.begin()
    ground.write("shut/.envrc", b"evil")
    (ground.path / "shut").chmod(0)
    told = ground.settle()
    assert moved("shut/.envrc") in told
    assert ground.quarantined() == [".envrc"]


@pytest.mark.requirement("FS-1", "FS-4")
def test_a_plant_is_carried_to_another_file_system_without_following_links(ground, tmp_path):
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    (tmp_path / "outside").write_bytes(b"canary")
    ground.write(".claude/deep/settings.json", b"{}")
    (ground.path / ".claude" / "link").symlink_to("../../outside")
    os.mkfifo(ground.path / ".claude" / "fifo")
    ground.write(".envrc", b"evil")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        ground.quarantine = tmp_path.__class__(elsewhere) / "q"
        assert ground.settle() == [moved(".claude"), moved(".envrc")]
        claude, envrc = sorted(ground.quarantine.glob("*-*"), key=lambda p: not p.is_dir())
        assert os.readlink(claude / "link") == "../../outside"
        assert (claude / "deep" / "settings.json").read_bytes() == b"{}"
        assert sorted(os.listdir(claude)) == ["deep", "link"]
        assert envrc.read_bytes() == b"evil"
    assert ground.files() == []
    assert (tmp_path / "outside").read_bytes() == b"canary"


@pytest.mark.requirement("FS-4")
def test_a_tree_that_cannot_be_copied_does_not_keep_others_in_place(ground, tmp_path):
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    ground.write(".claude/settings.json", b"{}")
    ground.write(".envrc", b"evil")
    way = os.open(ground.path / ".claude", os.O_RDONLY)
    for _ in range(25):  # deeper than any path can name
        os.mkdir("d" * 200, dir_fd=way)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=way)
        os.close(way)
        way = deeper
    os.close(way)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        ground.quarantine = tmp_path.__class__(elsewhere) / "q"
        with pytest.raises(WorkspaceError) as caught:
            ground.settle()
        assert caught.value.code == "CW-WORKSPACE-UNCHECKED"
        assert ground.quarantined() == [".envrc"]
    assert os.listdir(ground.path) == [".claude"]


@pytest.mark.requirement("FS-4")
def test_a_plant_is_moved_out_though_nothing_can_be_recorded(ground, monkeypatch):
    ground.write(".envrc", b"evil")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quarantine, "write_all", full)
    assert ground.settle() == [moved(".envrc")]
    assert (ground.files(), ground.quarantined()) == ([], [".envrc"])


@pytest.mark.requirement("FS-4")
def test_a_plant_that_cannot_be_moved_is_no_clean_result(ground, monkeypatch):
    ground.write(".envrc", b"evil")

    def busy(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(quarantine, "carry", busy)
    with pytest.raises(WorkspaceError) as caught:
        ground.settle()
    told = "'.envrc' is a protected name and could not be moved out: '.envrc' is in use"
    assert (caught.value.code, told in caught.value.message) == ("CW-WORKSPACE-UNCHECKED", True)


def test_a_quarantine_that_is_a_link_is_not_used(ground, tmp_path):
    ground.quarantine.symlink_to(tmp_path)
    with pytest.raises(WorkspaceError) as caught:
        ground.settle()
    assert caught.value.code == "CW-QUARANTINE"


def test_findings_are_plain_findings(ground):
    ground.write("big", b"x" * 5000)
    rules = WriteLimits(max_file_bytes=1000, max_total_bytes=1 << 20, max_files=9)
    found = check_directory(
        ground.ws,
        Baseline(before=(), started_ns=0),
        protection=load(),
        limits=rules,
        quarantine_dir=ground.quarantine,
    )
    assert found == (Finding("workspace", "medium", "'big' is larger than 1000 bytes"),)
