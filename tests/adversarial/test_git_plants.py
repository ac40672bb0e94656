"""Code in a workspace cannot make the user's tools run it later: git, agents, editors (FS-8, SKL-1).

The plants are proved with the real git: code makes them, and the host runs `git status` there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

import cellwall
from cellwall.core.errors import CellwallError
from interfaces import prepared_program

QUIET = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(cwd: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x", *words],
        cwd=cwd,
        env=QUIET,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def cli(*words: str) -> subprocess.CompletedProcess[bytes]:
    return prepared_program.run(words, stdin=b"", env=os.environ, timeout_s=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "a.txt").write_text("1\n")
    (root / "CLAUDE.md").write_text("Be careful.\n")
    (root / "packages/x").mkdir(parents=True)
    (root / "packages/x/AGENTS.md").write_text("Be careful.\n")
    (root / ".github").mkdir()
    (root / ".github/copilot-instructions.md").write_text("Be careful.\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def is_struck(canary: Path, cwd: Path) -> bool:
    canary.unlink(missing_ok=True)
    git(cwd, "status")
    return canary.exists()


def planting(canary: Path, root: Path) -> str:
    """A shell script that plants in every form, and does ordinary work besides."""
    evil = f'[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "touch {canary}; false"\\n\\tworktree = {root}\\n'
    bare = "mkdir -p {0}/objects {0}/refs; echo ref: refs/heads/main > {0}/HEAD; printf '%b' '" + (
        evil + "' > {0}/config; "
    )
    return (
        bare.format("docs/deep")
        + bare.format("x")
        + bare.format(".git/modules/sub/mod")
        + "mkdir -p sub; echo gitdir: ../.git/modules/sub/mod > sub/.git; "
        + "echo ../x > .git/commondir; "
        + "mkdir -p link; ln -s ../x link/.git; "
        + "echo ok > ordinary.txt; "
    )


PLACES = (".", "docs/deep", "x", "sub", "link")


def test_control_each_plant_makes_git_run_a_program(project: Path, tmp_path: Path):
    canary = tmp_path / "canary"
    subprocess.run(["sh", "-c", planting(canary, project)], cwd=project, check=True)
    assert [place for place in PLACES if is_struck(canary, project / place)] == list(PLACES)


@pytest.mark.requirement("FS-8")
def test_a_read_write_run_leaves_nothing_that_git_runs(project: Path, tmp_path: Path):
    canary = tmp_path / "canary"
    ran = cellwall.run_command(planting(canary, project), workspace=f"{project}:rw")
    assert (ran.error, (project / "ordinary.txt").read_text()) == (None, "ok\n")
    assert [place for place in PLACES if is_struck(canary, project / place)] == []
    assert git(project, "log", "--oneline").endswith(" one\n")
    told = " ".join(finding.message for finding in ran.outcome.findings)
    for name in ("docs/deep/HEAD", "x/HEAD", ".git/commondir", "sub/.git", "link/.git"):
        assert f"'{name}'" in told


@pytest.mark.requirement("FS-8")
def test_apply_takes_over_nothing_that_git_runs(project: Path, tmp_path: Path):
    canary = tmp_path / "canary"
    ran = cellwall.run_command(planting(canary, project), workspace=f"{project}:cow")
    done = cli("apply", "--yes", "--json", ran.outcome.workspace_id)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert {"docs/deep/HEAD", "x/config", ".git/commondir", "sub/.git", "link/.git"} <= {
        item["path"] for item in told["refused"]
    }
    assert (project / "ordinary.txt").read_text() == "ok\n"
    there = [place for place in PLACES if (project / place).is_dir()]
    assert [place for place in there if is_struck(canary, project / place)] == []


@pytest.mark.requirement("FS-8")
def test_the_file_api_and_uploads_write_nothing_that_git_runs(project: Path):
    git(project, "init", "-q", "--bare", "fixture")
    refused = []
    names = ("x/HEAD", "x/commondir", "sub/.git", ".git/commondir", "fixture/config", "CLAUDE.md",
             "fixture/hooks/x", ".git/modules/a/b/config", ".git/objects/info/alternates",
             "a/.cargo/config.toml", "deep/er/GEMINI.md", "deep/Claude.MD")  # fmt: skip
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        for name in names:
            with pytest.raises(CellwallError) as caught:
                sandbox.files.write(name, "x")
            refused.append(caught.value.code)
        for name in ("x/config", "x/head", "objects/y", "notes.md", ".git/info/exclude"):
            sandbox.files.write(name, "x")  # the control
    assert set(refused) == {"CW-PATH-PROTECTED"}


@pytest.mark.requirement("FS-8")
def test_what_an_archive_or_a_patch_file_puts_there_does_not_stay(project: Path, tmp_path: Path):
    inner = tmp_path / "inner"
    for name in ("sub/.git/config", "docs/CLAUDE.md", "docs/.envrc", "docs/a.txt"):
        (inner / name).parent.mkdir(parents=True, exist_ok=True)
        (inner / name).write_text("evil\n")
    with tarfile.open(project / "a.tar", "w") as archive:
        archive.add(inner, arcname=".")
    new = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+evil\n"
    (project / "p.diff").write_text(new.format("lib/.bashrc") + new.format("lib/b.txt"))
    script = "tar xf a.tar && git apply p.diff"
    names = ["sub/.git/config", "docs/CLAUDE.md", "docs/.envrc", "lib/.bashrc"]
    control = tmp_path / "control"
    shutil.copytree(project, control)
    subprocess.run(["sh", "-c", script], cwd=control, env=QUIET, check=True)
    assert [name for name in names if (control / name).exists()] == names
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert [name for name in names if (project / name).exists()] == []
    assert (project / "docs/a.txt").read_text() == (project / "lib/b.txt").read_text() == "evil\n"


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("setting", ["review", "protect"])
def test_build_files_are_protected_on_every_way_in_where_the_setting_says_so(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
):
    config = tmp_path / f"{setting}.toml"  # a runtime is kept for each path
    config.write_text(f'[workspace]\nbuild_files = "{setting}"\n')
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    (project / "Makefile").write_text("all:\n")
    script = "mkdir -p sub; echo evil >> Makefile; echo evil > sub/package.json; echo ok > a.c"
    copied = cellwall.run_command(script, workspace=f"{project}:cow")
    done = cli("apply", "--yes", "--json", copied.outcome.workspace_id)
    applied = {item["path"] for item in json.loads(done.stdout)["refused"]}
    kept = [(project / "Makefile").read_text(), (project / "sub/package.json").exists()]
    cellwall.run_command(script, workspace=f"{project}:rw")
    kept += [(project / "Makefile").read_text(), (project / "sub/package.json").exists()]
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        sandbox.files.write("b.c", "x")
        if setting == "protect":
            with pytest.raises(CellwallError) as caught:
                sandbox.files.write("new/conftest.py", "x")
            assert caught.value.code == "CW-PATH-PROTECTED"
        else:
            sandbox.files.write("new/conftest.py", "x")
    assert (project / "a.c").read_text() == "ok\n"
    if setting == "protect":
        assert "sub/package.json" in applied
        assert kept == ["all:\n", False] * 2
    else:  # the control: they are the work
        assert applied == set()
        assert kept == ["all:\nevil\n", True, "all:\nevil\nevil\n", True]


@pytest.mark.requirement("FS-8")
def test_ordinary_work_with_git_goes_on_in_a_read_write_run(project: Path):
    git(project, "config", "user.name", "x")
    git(project, "config", "user.email", "x@example.com")
    script = (
        "set -e; echo 2 > a.txt; git add a.txt; git commit -qm two; git checkout -qb feature/config;"
        "echo 3 > b.txt; git add b.txt; git commit -qm three; git tag v1; git stash list;"
        "git checkout -q main; git merge -q feature/config; git gc -q"
    )
    ran = cellwall.run_command(script, workspace=f"{project}:rw", timeout=60)
    assert (ran.exit_code, ran.outcome.findings) == (0, ())
    assert [line.split()[1] for line in git(project, "log", "--oneline").splitlines()] == [
        "three",
        "two",
        "one",
    ]


@pytest.mark.requirement("FS-8", "SKL-1")
def test_instruction_files_are_read_only_and_new_ones_do_not_stay(project: Path):
    script = (
        "for f in CLAUDE.md packages/x/AGENTS.md .github/copilot-instructions.md; do"
        "  echo evil >> $f; rm -f $f; true > $f; done;"
        "mv packages/x y; mkdir -p src; echo evil > src/CLAUDE.md; echo evil > src/Agents.md;"
        "echo evil > .cursorrules; echo evil > src/.windsurfrules; mkdir -p src/.cursor/rules;"
        "echo evil > src/.cursor/rules/a.mdc; echo fine > src/notes.md; cat CLAUDE.md"
    )
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    assert "Be careful." in ran.stdout  # they can be read
    assert git(project, "status", "-s", "-uall") == "?? src/notes.md\n"


@pytest.mark.requirement("FS-8", "SKL-1")
def test_a_link_to_instructions_is_put_back_and_its_target_is_read_only(project: Path):
    (project / "GEMINI.md").symlink_to("docs/agents.txt")
    (project / "docs").mkdir()
    (project / "docs/agents.txt").write_text("Be careful.\n")
    (project / "deep/er").mkdir(parents=True)
    (project / "deep/er/CLAUDE.md").symlink_to("../../docs/agents.txt")
    script = (
        "echo evil >> docs/agents.txt; rm GEMINI.md; echo evil > GEMINI.md; echo x > docs/x;"
        # The directory of a link cannot be moved to where nobody knows of the link.
        "mv deep/er away; mv deep away; for d in away away/er deep/er; do"
        "  rm -f $d/CLAUDE.md; echo evil > $d/CLAUDE.md; done"
    )
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    left = [path for path in project.rglob("CLAUDE.md") if "evil" in path.read_text()]
    assert (left, os.readlink(project / "deep/er/CLAUDE.md")) == ([], "../../docs/agents.txt")
    assert any("GEMINI.md" in finding.message for finding in ran.outcome.findings)
    assert os.readlink(project / "GEMINI.md") == "docs/agents.txt"
    assert (project / "GEMINI.md").read_text() == "Be careful.\n"
    assert (project / "docs/x").exists()


@pytest.mark.requirement("FS-8", "SKL-1")
def test_files_that_instructions_import_are_instructions(project: Path):
    (project / "CLAUDE.md").write_text("Read @docs/style.md and @docs/new.md.\n")
    (project / ".claude/rules").mkdir(parents=True)
    (project / ".claude/rules/a.md").write_text("- @../../lib/rule.txt\n")
    for name in ("docs/style.md", "docs/deep.md", "docs/plain.md", "lib/rule.txt"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("@deep.md\n")
    imported = ["docs/style.md", "docs/deep.md", "lib/rule.txt"]
    script = "for f in docs/style.md docs/deep.md docs/plain.md docs/new.md lib/rule.txt; do echo evil > $f; done"
    found = cellwall.run_command(script, workspace=f"{project}:cow").outcome.workspace_id
    done = cli("apply", "--yes", "--json", found)
    refused = {item["path"] for item in json.loads(done.stdout)["refused"]}
    assert refused == {*imported, "docs/new.md"}
    cellwall.run_command(script, workspace=f"{project}:rw")
    assert [(project / name).read_text() for name in imported] == ["@deep.md\n"] * 3
    assert not (project / "docs/new.md").exists()
    assert (project / "docs/plain.md").read_text() == "evil\n"  # the control
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        sandbox.files.write("docs/plain.md", "x")
        with pytest.raises(CellwallError) as caught:
            sandbox.files.write("docs/style.md", "x")
    assert caught.value.code == "CW-PATH-PROTECTED"


@pytest.mark.requirement("FS-8", "SKL-1")
def test_diff_and_apply_show_instructions_first_and_ask_for_a_word(project: Path):
    script = "echo a > a.txt; echo more >> CLAUDE.md; echo x > Makefile; echo z > .envrc"
    found = cellwall.run_command(script, workspace=f"{project}:cow").outcome.workspace_id
    shown = cli("diff", "--stat", found).stdout.decode().splitlines()
    assert [line.split()[1] for line in shown] == ["CLAUDE.md", ".envrc", "Makefile", "a.txt"]
    assert [line.partition("<-- ")[2] for line in shown] == [
        "instructions for agents",
        "protected name",
        "runs code when built or tested",
        "",
    ]
    text = cli("diff", found).stdout
    assert text.index(b"+more") < text.index(b"b/a.txt")
    done = cli("apply", "--yes", found)
    assert (done.returncode, (project / "CLAUDE.md").read_text()) == (1, "Be careful.\n")
    assert b"refused   CLAUDE.md: instructions for agents" in done.stdout
    assert (project / "a.txt").read_text() == "a\n"
    done = cli("apply", "--yes", "--force", "--instructions", found)
    assert (project / "CLAUDE.md").read_text() == "Be careful.\nmore\n"
    assert not (project / ".envrc").exists()  # never taken over


# --- the check after a run


@pytest.mark.requirement("FS-4", "FS-8")
def test_a_tree_larger_than_the_walk_bound_does_not_hide_a_plant(tmp_path: Path):
    config = tmp_path / "small.toml"
    config.write_text("[workspace]\nmax_walk_entries = 300\n")
    root = tmp_path / "ws"
    root.mkdir()
    ran = cellwall.run_command(
        "mkdir -p z/z a; echo evil > z/z/.envrc; cd a; i=0;"
        "while [ $i -lt 900 ]; do : > $i; i=$((i+1)); done",
        config=str(config),
        workspace=f"{root}:rw",
    )
    assert not (root / "z/z/.envrc").exists()
    # The control: there were more names than the bound, covers included, and the run ended by it.
    assert (ran.status, ran.limit) == ("limit", "disk")
    assert any(".envrc" in finding.message for finding in ran.outcome.findings)


@pytest.mark.requirement("FS-4", "FS-8")
def test_a_check_that_cannot_be_completed_is_no_clean_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "ws"
    root.mkdir()
    flood = "mkdir -p a z; for i in $(seq 200); do : > a/$i; done; echo evil > z/.envrc; echo done"
    with monkeypatch.context() as patch:
        patch.setattr("cellwall.sandbox.protection.post_run_check.MAX_CHECK_ENTRIES", 100)
        ran = cellwall.run_command(flood, workspace=f"{root}:rw")
    assert (ran.status, ran.error.code) == ("error", "CW-WORKSPACE-UNCHECKED")
    assert ran.stdout == ""
    (root / "late").mkdir()
    (root / "late/.envrc").write_text("evil")  # as if it had not been reached
    again = cellwall.run_command("true", workspace=f"{root}:rw")
    assert (again.status, (root / "late/.envrc").exists()) == ("ok", False)
    told = [finding.message for finding in again.outcome.findings]
    assert "ended before its check" in told[0]
    assert "late/.envrc" in told[1]
    third = cellwall.run_command("true", workspace=f"{root}:rw")
    assert third.outcome.findings == ()


@pytest.mark.requirement("FS-4", "FS-8", "ISO-8")
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_the_check_is_made_up_for_after_cellwall_was_killed(tmp_path: Path, mode: str):
    root = tmp_path / "ws"
    root.mkdir()
    script = (
        "import cellwall, sys\n"
        "cellwall.run_command('mkdir -p z; echo evil > z/.envrc; echo mine > z/ordinary;"
        " echo planted; sleep 60',\n"
        f"    workspace={str(root) + ':rw'!r}, timeout=60,\n"
        "    on_stdout=lambda text: print('planted', flush=True))\n"
    )
    victim = prepared_program.Popen([], code=script, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "planted\n"
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate(timeout=30)
    assert (root / "z/.envrc").exists()  # the control: nobody has looked
    again = cellwall.run_command("ls", workspace=f"{root}:{mode}")
    assert again.error is None
    assert not (root / "z/.envrc").exists()
    assert (root / "z/ordinary").read_text() == "mine\n"


@pytest.mark.requirement("FS-4")
def test_odd_trees_do_not_keep_the_check_from_being_completed(tmp_path: Path):
    root = tmp_path / "ws"
    root.mkdir()
    code = (
        "import os\n"
        "os.makedirs('d/loop'); os.symlink('..', 'd/loop/up'); os.symlink('self', 'self')\n"
        "os.mkdir(b'd/new\\nline'); os.mkdir(b'd/\\xff\\xfe')\n"
        "for d in (b'd/new\\nline', b'd/\\xff\\xfe', b'd/shut'):\n"
        "    os.makedirs(d, exist_ok=True); open(d + b'/.envrc', 'w').write('evil')\n"
        "os.link('d/shut/.envrc', 'd/other-name')\n"
        "here = os.getcwd()\n"
        "for _ in range(300): os.mkdir('n'); os.chdir('n')\n"
        "open('.envrc', 'w').write('evil'); os.chdir(here)\n"
        "os.chmod('d/shut', 0)\n"
        "print('ok')\n"
    )
    ran = cellwall.run_code(code, workspace=f"{root}:rw")
    assert (ran.error, ran.stdout) == (None, "ok\n")
    left = subprocess.run(["find", root, "-name", ".envrc"], capture_output=True, check=True)
    assert left.stdout == b""
    assert (root / "d/other-name").exists()  # a name that nobody obeys


# --- links through which the user's tools read or write elsewhere


def test_control_a_link_in_a_git_directory_makes_a_commit_write_its_configuration(
    project: Path, tmp_path: Path
):
    canary = tmp_path / "canary"
    subprocess.run(["sh", "-c", linking(canary)], cwd=project, check=True)
    commit_by_editor(project)
    assert is_struck(canary, project)


def linking(canary: Path) -> str:
    return (
        "rm -f .git/COMMIT_EDITMSG; ln -s config .git/COMMIT_EDITMSG;"
        f"printf '[core]\\n\\tfsmonitor = \"touch {canary}; false\"\\n' > .git/MERGE_MSG;"
        "echo b >> a.txt"
    )


def commit_by_editor(project: Path) -> None:
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x", "commit", "-qa"],
        cwd=project,
        env={**QUIET, "GIT_EDITOR": "true"},
        capture_output=True,
        check=False,
    )


@pytest.mark.requirement("FS-8")
def test_a_link_that_a_commit_would_write_through_does_not_stay(project: Path, tmp_path: Path):
    canary = tmp_path / "canary"
    old = (project / ".git/config").read_bytes()
    ran = cellwall.run_command(linking(canary), workspace=f"{project}:rw")
    assert any("'.git/COMMIT_EDITMSG'" in each.message for each in ran.outcome.findings)
    commit_by_editor(project)
    assert (project / ".git/config").read_bytes() == old
    assert not is_struck(canary, project)
    assert (project / "a.txt").read_text() == "1\nb\n"


@pytest.mark.requirement("FS-8")
def test_no_new_link_stays_in_a_version_control_directory(project: Path, tmp_path: Path):
    outside = tmp_path / "outside-rc"
    outside.write_text("mine\n")
    git(project, "init", "-q", "--bare", "fixture")
    names = (".git/COMMIT_EDITMSG", ".git/logs/HEAD", ".git/FETCH_HEAD", ".git/index",
             ".git/packed-refs", ".git/gc.pid", ".git/objects/pack", ".git/refs/heads/x",
             ".git/modules/a/x", "fixture/packed-refs", "fixture/refs/tags/deep",
             ".hg/undo", "sub/.jj/working_copy", ".sl/store", ".svn/wc.db")  # fmt: skip
    (project / ".git/old").symlink_to("description")
    (project / "moved").mkdir()
    (project / "moved/HEAD").symlink_to("../../../outside-rc")
    script = "".join(
        f"mkdir -p $(dirname {name}); rm -rf {name}; ln -s ../../outside-rc {name};"
        for name in names
    )
    script += (
        "mv moved .git/rr-cache; ln -s a.txt ordinary; rm .git/old; ln -s description .git/old"
    )
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    assert ran.error is None
    assert [name for name in names if (project / name).is_symlink()] == []
    assert not (project / ".git/rr-cache/HEAD").is_symlink()  # older than the run, new there
    told = " ".join(finding.message for finding in ran.outcome.findings)
    assert [name for name in names if f"'{name}'" not in told] == []
    assert os.readlink(project / ".git/old") == "description"  # was there, and is the same
    assert os.readlink(project / "ordinary") == "a.txt"  # the control
    git(project, "commit", "-qam", "two")
    assert outside.read_text() == "mine\n"


@pytest.mark.requirement("FS-8")
def test_a_read_only_file_cannot_be_given_a_second_name(project: Path):
    script = (
        "ln a.txt b.txt && echo control;"
        "ln .git/config .git/COMMIT_EDITMSG || ln CLAUDE.md notes.md || echo refused"
    )
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    assert ran.stdout == "control\nrefused\n"
    assert (project / ".git/config").stat().st_nlink == 1


@pytest.mark.requirement("FS-8", "SKL-1")
@pytest.mark.parametrize("name", ["CLAUDE.md", ".github/instructions/a.md"])
def test_a_protected_file_cannot_be_changed_by_an_older_hard_link(project: Path, name: str):
    place = project / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("Be careful.\n")
    os.link(place, project / "notes.md")
    (project / "own.md").write_text("")
    os.link(project / "own.md", project / "control.md")
    script = "cat notes.md; for f in control notes; do echo evil >> $f.md && echo $f; done; rm -f notes.md"
    ran = cellwall.run_command(script, workspace=f"{project}:rw")
    assert ran.stdout == "Be careful.\ncontrol\n"
    assert ran.outcome.findings == ()
    assert (place.read_text(), (project / "own.md").read_text()) == ("Be careful.\n", "evil\n")
    assert place.stat().st_nlink == 2
    copy = cellwall.run_command("echo mine > notes.md; cat notes.md", workspace=f"{project}:cow")
    assert copy.stdout == "mine\n"  # the host's file is behind the copy


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("mode", ["ro", "rw", "cow"])
def test_a_hidden_file_is_not_read_by_an_older_hard_link(project: Path, mode: str):
    (project / ".env").write_text("PASSWORD=hunter2\n")
    (project / "a.txt").write_text("ordinary\n")
    os.link(project / ".env", project / "backup.txt")
    ran = cellwall.run_command("cat a.txt backup.txt .env", workspace=f"{project}:{mode}")
    assert ran.stdout.startswith("ordinary\n")
    assert "hunter2" not in ran.stdout


@pytest.mark.requirement("FS-8")
def test_a_protected_file_with_too_many_hard_links_is_a_refusal_with_a_hint(project: Path):
    for number in range(65):
        os.link(project / ".git/config", project / f"link-{number}")
    refused = cellwall.run_command("true", workspace=f"{project}:rw")
    assert refused.outcome.error is not None
    assert (refused.outcome.error.code, "copy" in refused.outcome.error.hint) == (
        "CW-WORKSPACE-REFUSED",
        True,
    )
    (project / "link-0").unlink()
    assert cellwall.run_command("true", workspace=f"{project}:rw").exit_code == 0


LEADING = {
    ".cargo": ("cargo2", "config.toml"),
    ".hg": ("hg2", "hgrc"),
    "sub/.jj": ("jj2", "repo"),
    "sub/.github": ("../gh2", "workflows"),
}


def leading_links() -> str:
    return "mkdir -p sub; ln -s a.txt ordinary;" + "".join(
        f"mkdir -p sub/{target} {target.removeprefix('../')}; echo evil > "
        f"{target.removeprefix('../')}/{inner}; ln -s {target} {link};"
        for link, (target, inner) in LEADING.items()
    )


@pytest.mark.requirement("FS-8")
def test_a_link_in_the_place_of_a_directory_with_protected_names_does_not_stay(project: Path):
    ran = cellwall.run_command(leading_links(), workspace=f"{project}:rw")
    told = " ".join(finding.message for finding in ran.outcome.findings)
    assert [link for link in LEADING if (project / link).is_symlink()] == []
    assert [link for link in LEADING if f"'{link}'" not in told] == []
    assert (project / "ordinary").is_symlink()  # the control
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        sandbox.files.move("ordinary", "plain")
        for name in (".cargo", ".git/FETCH_HEAD"):
            with pytest.raises(CellwallError) as caught:
                sandbox.files.move("plain", name)
            assert caught.value.code == "CW-PATH-PROTECTED"


@pytest.mark.requirement("FS-8")
def test_apply_takes_over_no_link_that_steers_a_tool(project: Path):
    script = leading_links() + "ln -s ../a.txt .git/FETCH_HEAD"
    ran = cellwall.run_command(script, workspace=f"{project}:cow")
    done = cli("apply", "--yes", "--json", ran.outcome.workspace_id)
    refused = {item["path"] for item in json.loads(done.stdout)["refused"]}
    assert {*LEADING, ".git/FETCH_HEAD"} <= refused
    assert [link for link in LEADING if (project / link).is_symlink()] == []
    assert (project / "ordinary").is_symlink()  # the control
