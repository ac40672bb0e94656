"""What a copy-on-write run changed is told, and only what is harmless is taken over (FS-2)."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.workspace import change_diff
from cellwall.sandbox.workspace.apply import ApplyReport, apply
from cellwall.sandbox.workspace.change_diff import unified_diff
from cellwall.sandbox.workspace.changes import Change, changes

FAR_FUTURE_NS = 1 << 62
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes whiteout devices by hand")


class Layers:
    """A host directory, what an overlay wrote over it, and both opened."""

    def __init__(self, base):
        self.base = base
        self.lower_path, self.upper_path = base / "lower", base / "upper"
        for path in (self.lower_path, self.upper_path, base / "work", base / "merged"):
            path.mkdir()
        self.lower, self.upper = FileTree.open(self.lower_path), FileTree.open(self.upper_path)

    def run(self, script):
        """Change the merged view in a real overlay, mounted as the sandbox mounts it."""
        options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
        inside = f"mount -t overlay overlay -o {options} merged && cd merged && {{ {script}\n}}"
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", inside]
        done = subprocess.run(command, cwd=self.base, capture_output=True, text=True, check=False)
        if re.search("unshare|mount:", done.stderr):
            reason = "needs overlayfs in a user namespace (unprivileged user namespaces)"
            assert not os.environ.get("CELLWALL_MUST_WORK"), reason + done.stderr
            pytest.skip(reason)
        assert (done.returncode, done.stderr) == (0, "")

    def changes(self):
        return changes(self.lower, self.upper)

    def apply(self, **options):
        options = {"started_ns": FAR_FUTURE_NS} | options
        return apply(self.lower, self.upper, load(), **options)

    def write(self, name, data=b"", layer="lower", mode=0o644):
        path = self.base / layer / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        return path


@pytest.fixture
def layers(tmp_path):
    made = Layers(tmp_path)
    with made.lower, made.upper:
        yield made


def tree(path):
    found = {}
    for root, directories, files in os.walk(path):
        for name in directories + files:
            full = os.path.join(root, name)
            status = os.lstat(full)
            content = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(full)
            elif stat.S_ISREG(status.st_mode):
                with open(full, "rb") as file:
                    content = file.read()
            found[os.path.relpath(full, path)] = (oct(status.st_mode), content)
    return found


def fill(layers):
    for name in ("keep", "edit", "remove", "mode", "touch", "gone/a", "gone/b/c", "anew/old"):
        layers.write(name, f"{name}\n".encode())
    layers.write("anew/same", b"same\n")
    layers.write("becomes-dir", b"x")
    layers.write("becomes-link/below", b"x")
    (layers.lower_path / "link").symlink_to("keep")
    (layers.lower_path / "link-edit").symlink_to("keep")


EVERYTHING = r"""
echo more >> edit; rm remove; chmod 755 mode; touch touch; rm -r gone
rm -r anew; mkdir anew; echo same > anew/same; echo new > anew/new
mkdir -p new/dir; printf 'a\0b' > new/dir/blob; ln -s ../keep new/link
rm becomes-dir; mkdir becomes-dir; echo y > becomes-dir/y
rm -r becomes-link; ln -s keep becomes-link; ln -sfn edit link-edit
"""


@pytest.mark.requirement("FS-2")
def test_every_kind_of_change_in_a_real_overlay_is_told(layers):
    fill(layers)
    layers.run(EVERYTHING)
    assert layers.changes() == (
        Change("added", "anew/new", "file", None, 4),
        Change("removed", "anew/old", "file", 9, None),
        Change("type", "becomes-dir", "dir", 1, None),
        Change("added", "becomes-dir/y", "file", None, 2),
        Change("type", "becomes-link", "symlink", None, 4),
        Change("removed", "becomes-link/below", "file", 1, None),
        Change("modified", "edit", "file", 5, 10),
        Change("removed", "gone", "dir", None, None),
        Change("removed", "gone/a", "file", 7, None),
        Change("removed", "gone/b", "dir", None, None),
        Change("removed", "gone/b/c", "file", 9, None),
        Change("modified", "link-edit", "symlink", 4, 4),
        Change("mode", "mode", "file", 5, 5),
        Change("added", "new", "dir", None, None),
        Change("added", "new/dir", "dir", None, None),
        Change("added", "new/dir/blob", "file", None, 3, binary=True),
        Change("added", "new/link", "symlink", None, 7),
        Change("removed", "remove", "file", 7, None),
    )


@pytest.mark.requirement("FS-2")
def test_apply_makes_the_host_what_the_run_saw_and_not_before(layers):
    fill(layers)
    before = tree(layers.lower_path)
    layers.run(EVERYTHING + "cp -a . ../copy")
    assert tree(layers.lower_path) == before
    told = layers.changes()
    report = layers.apply()
    assert report.refused == ()
    assert sorted(report.applied, key=lambda change: change.path) == list(told)
    assert tree(layers.lower_path) == tree(layers.base / "copy")
    assert layers.changes() == ()


@pytest.mark.requirement("FS-2")
def test_a_path_too_long_to_be_opened_is_refused_alone(layers):
    here = os.open(layers.upper_path, os.O_RDONLY)
    for _ in range(30):  # 6,000 bytes
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    layers.write("good", b"x", layer="upper")
    report = layers.apply()
    assert [why for _path, why in report.refused] == ["is too long"]
    assert (layers.lower_path / "good").read_bytes() == b"x"
    layers.write("more", b"x", layer="upper")
    assert "diff --git a/more b/more" in unified_diff(layers.lower, layers.upper, max_bytes=10**6)


@pytest.mark.requirement("FS-2")
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git to read the diff")
def test_git_reads_the_diff_and_comes_to_the_same_files(layers):
    fill(layers)
    layers.write("no-newline", b"a\nb")
    layers.write("big", "".join(f"{n}\n" for n in range(500)).encode())
    layers.run(
        r"""
        echo more >> edit; rm remove; chmod 755 mode; rm -r gone; : > empty
        sed -i -e 's/^30$/thirty/' -e '/^400$/d' -e 's/^499$/&x/' big; printf 'a\nc' > no-newline
        mkdir 'od d'; printf 'x\ry\f\n' > 'od d/ü "q".txt'; ln -sfn edit link-edit
        rm becomes-dir; mkdir becomes-dir; echo y > becomes-dir/y; cp -a . ../copy
        """
    )
    diff = unified_diff(layers.lower, layers.upper, max_bytes=1 << 20)
    (layers.base / "patch").write_bytes(diff.encode())
    shutil.copytree(layers.lower_path, layers.base / "patched", symlinks=True)
    command = ["git", "apply", "--whitespace=nowarn", "../patch"]
    env = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(layers.base)}
    subprocess.run(command, cwd=layers.base / "patched", env=env, check=True)
    assert tree(layers.base / "patched") == tree(layers.base / "copy")
    assert re.findall("^@@.*", diff[diff.index("a/big") : diff.index("a/edit")], re.MULTILINE) == [
        "@@ -28,7 +28,7 @@",
        "@@ -398,7 +398,6 @@",
        "@@ -497,4 +496,4 @@",
    ]


def test_the_diff_of_a_few_files_word_for_word(layers):
    layers.write("a.txt", b"1\n2\n3\n")
    layers.write("a.txt", b"1\ntwo\n3", layer="upper")
    layers.write("blob", b"\x80\x81", layer="upper")
    layers.write("for\nged", b"x\n", layer="upper", mode=0o755)
    assert unified_diff(layers.lower, layers.upper, max_bytes=9999) == (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n"
        " 1\n-2\n-3\n+two\n+3\n\\ No newline at end of file\n"
        "diff --git a/blob b/blob\nnew file mode 100644\nBinary files /dev/null and b/blob differ\n"
        'diff --git "a/for\\012ged" "b/for\\012ged"\nnew file mode 100755\n'
        '--- /dev/null\n+++ "b/for\\012ged"\n@@ -0,0 +1,1 @@\n+x\n'
    )


def test_a_long_diff_is_cut_and_says_so(layers):
    layers.write("a", b"1\n", layer="upper")
    layers.write("b", b"1\n" * 5000, layer="upper")
    diff = unified_diff(layers.lower, layers.upper, max_bytes=200)
    assert diff.startswith("diff --git a/a b/a\n")
    assert "Binary files /dev/null and b/b differ" in diff
    assert unified_diff(layers.lower, layers.upper, max_bytes=10) == (
        "… the diff is longer than 10 bytes; the rest is left out\n"
    )


def test_texts_made_to_be_slow_to_compare_are_shown_as_replaced(layers):
    layers.write("slow", b"a\nb\n" * 20_000)
    layers.write("slow", b"b\na\n" * 20_000, layer="upper")
    started_s = time.process_time()
    diff = unified_diff(layers.lower, layers.upper, max_bytes=1 << 20)
    assert time.process_time() - started_s < 10
    assert len(re.findall("^@@", diff, re.MULTILINE)) == 1


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=30)


@given(lines, lines, st.sampled_from([0, 10_000]), st.sampled_from(["", "end"]))
def test_hunks_turn_the_old_lines_into_the_new_ones(old, new, pairs_left, end):
    old = old + [end] * bool(end)
    text, _ = change_diff._hunks(old, new, pairs_left)
    made, at = [], 0
    rows = text.replace("\n\\ No newline at end of file\n", "\0").split("\n")
    for row in "\n".join(rows).replace("\0", "~\n").splitlines():
        head = re.match(r"@@ -(\d+),(\d+)", row)
        if head:
            start = int(head[1]) - (head[2] != "0")
            made += old[at:start]
            at = start
            continue
        line = row[1:-1] if row.endswith("~") else row[1:] + "\n"
        if row[0] in " -":
            assert old[at] == line
            at += 1
        if row[0] in " +":
            made.append(line)
    assert made + old[at:] == new


# Marks of the overlay, by hand.


@pytest.mark.requirement("FS-2")
@pytest.mark.parametrize("how", ["device", "attribute"])
def test_whiteouts_and_opaque_directories(layers, how):
    layers.write("d/a", b"1")
    layers.write("d/b/c", b"2")
    layers.write("e", b"3")
    upper = layers.upper_path
    (upper / "d").mkdir()
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    if how == "device":
        if os.geteuid() != 0:
            pytest.skip("needs root: makes a whiteout device by hand")
        os.mknod(upper / "e", stat.S_IFCHR, os.makedev(0, 0))
    else:
        layers.write("e", layer="upper")
        os.setxattr(upper / "e", "user.overlay.whiteout", b"")
        os.setxattr(upper, "user.overlay.opaque", b"x")
    assert [(change.kind, change.path) for change in layers.changes()] == [
        ("removed", "d/a"),
        ("removed", "d/b"),
        ("removed", "d/b/c"),
        ("removed", "e"),
    ]


def test_a_redirect_is_refused_because_it_would_be_misread(layers):
    (layers.upper_path / "moved").mkdir()
    os.setxattr(layers.upper_path / "moved", "user.overlay.redirect", b"/old")
    with pytest.raises(WorkspaceError) as caught:
        layers.changes()
    assert caught.value.code == "CW-OVERLAY-FOREIGN"


def test_a_copy_with_the_same_bytes_and_mode_is_no_change(layers):
    layers.write("a", b"same")
    os.utime(layers.write("a", b"same", layer="upper"), (1, 1))
    assert layers.changes() == ()


# What is not taken over.


@pytest.mark.requirement("FS-2", "FS-4")
def test_harmful_changes_are_refused_and_the_rest_goes_on(layers):
    upper = layers.upper_path
    layers.write(".git/config", b"old")
    layers.write(".env", b"old")
    before = tree(layers.lower_path)
    for name in (".git/config", ".env", ".git/hooks/pre-commit", "sub/.claude/settings.json"):
        layers.write(name, b"planted", layer="upper")
    layers.write("tool", layer="upper", mode=0o4755)
    layers.write("virus.EXE", layer="upper")
    layers.write("fine.txt", b"fine", layer="upper")
    layers.write(os.fsdecode(b"bad\xff"), layer="upper")
    os.mkfifo(upper / "fifo")
    (upper / "link-abs").symlink_to("/etc/passwd")
    (upper / "link-out").symlink_to("../x")
    (upper / "link-env").symlink_to("./.env")
    (upper / "sub" / "link-turn").symlink_to("../a/../../x")
    (upper / "sub" / "link-in").symlink_to("../fine.txt")
    report = layers.apply(blocked_extensions={"exe"})
    assert report == ApplyReport(
        (
            Change("added", "fine.txt", "file", None, 4),
            Change("added", "sub", "dir", None, None),
            Change("added", "sub/link-in", "symlink", None, 11),
        ),
        (
            (".env", "protected name (hide)"),
            (".git/config", "protected name (read-only)"),
            (".git/hooks", "protected name (read-only)"),
            (".git/hooks/pre-commit", "protected name (read-only)"),
            (os.fsdecode(b"bad\xff"), "its name is not valid text"),
            ("fifo", "device, FIFO or socket"),
            ("link-abs", "link to an absolute path"),
            ("link-env", "link to a protected name"),
            ("link-out", "link that leads out of the workspace"),
            ("sub/.claude", "protected name (read-only)"),
            ("sub/.claude/settings.json", "protected name (read-only)"),
            ("sub/link-turn", "link that leads out of the workspace"),
            ("tool", "set-user-id or set-group-id bit"),
            ("virus.EXE", "blocked extension"),
        ),
    )
    after = tree(layers.lower_path)
    assert {path: after[path] for path in before} == before
    assert sorted(set(after) - set(before)) == ["fine.txt", "sub", "sub/link-in"]


@pytest.mark.requirement("FS-2")
def test_a_directory_that_keeps_a_protected_name_stays(layers):
    layers.write("d/.env", b"KEY")
    layers.write("d/a", b"")
    (layers.upper_path / "d").mkdir()
    os.setxattr(layers.upper_path / "d", "user.overlay.opaque", b"y")
    layers.write("e/.env", b"KEY")
    layers.write("e", b"file now", layer="upper")
    assert layers.apply().refused == (
        ("d/.env", "protected name (hide)"),
        ("e", "is a directory that is not empty"),
        ("e/.env", "protected name (hide)"),
    )
    assert sorted(tree(layers.lower_path)) == ["d", "d/.env", "e", "e/.env"]


@pytest.mark.requirement("FS-2")
def test_what_the_host_changed_since_the_run_is_kept_unless_forced(layers):
    layers.write("a", b"old")
    started_ns = layers.lower_path.joinpath("a").stat().st_ctime_ns
    for name in ("a", "b"):
        layers.write(name, b"of the run", layer="upper")
    while layers.write("b", b"of the host").stat().st_ctime_ns <= started_ns:
        pass
    report = layers.apply(started_ns=started_ns)
    assert [change.path for change in report.applied] == ["a"]
    assert report.refused == (("b", "changed on the host since the run"),)
    assert (layers.lower_path / "b").read_bytes() == b"of the host"
    assert layers.apply(started_ns=started_ns, force=True).refused == ()
    assert (layers.lower_path / "b").read_bytes() == b"of the run"


@pytest.mark.requirement("FS-1", "FS-2")
def test_apply_never_writes_through_a_link_on_the_host(layers):
    (layers.base / "outside").mkdir()
    (layers.base / "outside" / "f").write_bytes(b"canary")
    (layers.lower_path / "d").symlink_to("../outside")
    (layers.lower_path / "f").symlink_to("../outside/f")
    layers.write("d/f", b"planted", layer="upper")
    layers.write("f", b"planted", layer="upper")
    layers.apply()
    assert tree(layers.base / "outside") == {"f": (oct(0o100644), b"canary")}
    assert tree(layers.lower_path)["f"] == (oct(0o100644), b"planted")


def test_a_sparse_file_stays_sparse(layers):
    with open(layers.upper_path / "sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"data")
        file.truncate(1 << 30)
    layers.apply()
    status = os.stat(layers.lower_path / "sparse")
    assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (1 << 30, True)
    with open(layers.lower_path / "sparse", "rb") as file:
        file.seek(1 << 20)
        assert file.read(6) == b"data\0\0"


@as_root
def test_roots_new_files_belong_to_the_owner_of_the_host_directory(layers):
    os.chown(layers.write("old", b"1"), 1111, 1111)
    os.chown(layers.lower_path, 1234, 2345)
    for name in ("old", "new", "d/new"):
        layers.write(name, b"changed", layer="upper")
    (layers.upper_path / "link").symlink_to("new")
    layers.apply()
    found = {}
    for name in ("old", "new", "d", "d/new", "link"):
        status = os.lstat(layers.lower_path / name)
        found[name] = (status.st_uid, status.st_gid)
    expected = dict.fromkeys(("new", "d", "d/new", "link"), (1234, 2345))
    assert found == expected | {"old": (1111, 1111)}
