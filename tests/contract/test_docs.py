"""The documentation says what the code does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docs import generate

import cellwall
from cellwall.config.models import SECTIONS
from cellwall.core.limits import MIB, Limits
from interfaces import prepared_program
from newcomer import readme
from newcomer.hosts import Shown

ROOT = Path(__file__).parents[2]


@pytest.mark.requirement("CFG-2")
def test_generated_documents_are_current():
    stale = [
        path.name for path, text in generate.documents().items() if path.read_text("utf-8") != text
    ]
    assert stale == [], "run ./dev docs"


def test_the_reference_of_settings_has_a_row_for_every_key():
    rows = (ROOT / "docs/configuration.md").read_text("utf-8").splitlines()
    keys = [key for model in SECTIONS.values() for key in model.model_fields]
    assert [key for key in keys if not any(row.startswith(f"| `{key}` |") for row in rows)] == []


def test_links_between_documents_lead_somewhere():
    broken = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
            if not (document.parent / target).exists():
                broken += [f"{document.name}: {target}"]
    assert broken == []


def test_ci_runs_the_command_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert "./dev test" in readme
    assert [line for line in ci.splitlines() if "./dev" in line] == ["exec ./dev test"]


@pytest.mark.parametrize("option", ["--fast", "--long", "--vm", "--providers"])
def test_how_much_is_tested_is_told_by_the_readme_and_the_help(option):
    told = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    assert f"`./dev test {option}`" in (ROOT / "README.md").read_text("utf-8")
    (usage,) = [line for line in told.splitlines() if line.startswith("  ./dev test ")]
    assert option in usage


def code_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
def test_python_of_the_readme_runs_as_written(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(code_blocks("python")), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
        )
    finally:  # the last block has a sandbox that lives in the supervisor
        stop = [Path(sys.executable).with_name("cellwall"), "supervisor", "stop"]
        subprocess.run(stop, capture_output=True, timeout=60, check=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["21", "{'a': '1', 'b': '2'}"]
    middle = lines.index("limit wall")
    assert lines[middle : middle + 3] == ["limit wall", "['cats 0', 'cats 1']", "42"]
    assert lines[middle + 3].startswith("neutralise [('injection', 'high', ")
    assert (lines[-4][:18], lines[-3]) == ("<<<cellwall:begin ", "Linux")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A directory with `cellwall`; what every start of the real program does is tested elsewhere."""
    folder = tmp_path_factory.mktemp("bin")
    prepared_program.install_launcher(folder)
    return folder


@pytest.mark.slow
def test_commands_of_the_readme_run_as_written(programs, tmp_path):
    commands = next(block for block in code_blocks("sh") if "doctor" in block)
    program = f"set -eu\nPATH={programs}:$PATH\n" + re.sub(
        r"(\.\./)?\.venv/bin/cellwall", "cellwall", commands
    )
    done = subprocess.run(
        ["sh", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "uid=1000" in done.stdout
    assert '"stdout": "42\\n"' in done.stdout
    assert "hello" in done.stdout
    assert re.search(r"cellwall diff act_\w+", done.stderr)


@pytest.mark.slow
def test_the_start_page_works_as_written(programs, tmp_path):
    """All but its first command, which installs: tests/newcomer/run types that one as well."""
    page = readme.start_page()
    installs, _, commands = page.program.partition("\n")
    text = (ROOT / "docs/index.md").read_text("utf-8")
    for in_a_sentence in re.findall(r"`(cellwall [^`]+)`", text):
        needs_a_person = in_a_sentence == "cellwall hook uninstall"
        commands += (
            f"if {in_a_sentence}; then exit 9; fi\n" if needs_a_person else f"{in_a_sentence}\n"
        )
    assert installs == "./dev run"
    clone, home = tmp_path / "clone", tmp_path / "home"
    bin_folder = clone / ".venv/bin"
    bin_folder.mkdir(parents=True)
    home.mkdir()
    (bin_folder / "cellwall").symlink_to(programs / "cellwall")
    (bin_folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_folder / "python").chmod(0o700)
    done = subprocess.run(
        ["sh", "-euc", commands], cwd=clone, env={**os.environ, "HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert page.faults(Shown(done.returncode, done.stdout, 0.0)) == [], done.stdout


@pytest.mark.slow
def test_python_of_the_guide_for_embedding_runs_as_written(tmp_path):
    text = (ROOT / "docs/guides/embed.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("ok 8\nlimit wall\n", "")


@pytest.mark.long
@pytest.mark.parametrize(
    ("guide", "before"), [("prove", ""), ("operate", ""), ("upgrade", "cellwall db migrate\n")]
)
def test_commands_of_the_guide_run_as_written(guide, before, programs, tmp_path):
    text = (ROOT / f"docs/guides/{guide}.md").read_text("utf-8")
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        ["sh", "-euc", f"PATH={programs}:$PATH\n{before}{commands}"], cwd=tmp_path,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done


_SAYS_A_VERDICT = re.compile(r"cellwall (?:policy (?:check|explain)|scan)\b")


@pytest.mark.slow
@pytest.mark.parametrize("of", ["audit tail", "policy init", "mcp install", "cellwall scan"])
def test_each_line_of_the_readme_runs_as_written(of, programs, tmp_path):
    """Those that need neither another machine nor a person at a terminal."""
    block = next(block for block in code_blocks("sh") if of in block)
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "HOME": str(home)}
    block = block.replace("/tmp/cellwall-verify.py", str(tmp_path / "cellwall-verify.py"))
    before = ["cellwall run -- true"] if "audit" in of else []  # what the record is about
    for line in [*before, *filter(None, block.splitlines())]:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=folder,
            env=environ,
            capture_output=True,
            timeout=60,
            check=False,
        )
        good = {0, 3, 4} if _SAYS_A_VERDICT.search(line) else {0}
        assert done.returncode in good, (line, done)


def test_limits_table_of_the_readme_has_the_defaults_of_the_code():
    limits = Limits()
    readme = (ROOT / "README.md").read_text("utf-8")
    for row in (
        f"| wall time | {limits.wall_s:.0f} s |",
        f"| CPU time | {limits.cpu_s:.0f} s |",
        f"| memory | {limits.memory_bytes // MIB} MiB |",
        f"| processes and threads | {limits.processes} |",
        f"| disk | {limits.disk_bytes // MIB} MiB |",
        f"| one file | {limits.file_size_bytes // MIB} MiB |",
        f"| output | {limits.output_bytes // MIB} MiB |",
        f"| open files | {limits.open_files} |",
    ):
        assert row in readme


def test_version_is_told_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == cellwall.__version__
