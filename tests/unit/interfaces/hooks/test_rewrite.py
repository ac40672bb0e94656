"""A command of an agent becomes one that runs inside; nothing in it can get out of its quotes."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, Denied
from cellwall.interfaces.hooks.rewrite import OTHER_SHELLS, cautious, inside

PROGRAM = "/opt/cellwall/bin/cellwall"


def rewritten(command: str, **fields: object) -> list[str]:
    given = {"command": command, **fields}
    found = inside("Bash", given, cwd="/tmp", project=None, program=PROGRAM)
    assert found is not None
    return shlex.split(str(found["command"]))


def test_the_command_runs_in_bash_with_the_directory_it_had():
    assert rewritten("ls -la | head") == [
        PROGRAM, "run", "--workspace", "/tmp:rw", "--cwd", "/workspace", "--timeout", "120",
        "--", "bash", "-c", "ls -la | head",
    ]  # fmt: skip


@pytest.mark.requirement("ISO-4")
def test_no_field_that_could_change_what_the_host_does_is_handed_on():
    given = {"command": "ls", "dangerouslyDisableSandbox": True, "new_in_2030": 1, "timeout": 5}
    found = inside("Bash", given, cwd="/tmp", project=None, program=PROGRAM)
    assert found is not None
    assert {name: found[name] for name in found if name != "command"} == {"timeout": 5}


def test_the_fields_that_are_known_stay_as_they_are():
    given = {"command": "ls", "description": "Look", "timeout": 5000, "run_in_background": False}
    found = inside("Bash", given, cwd="/tmp", project=None, program=PROGRAM)
    assert found is not None
    assert {k: v for k, v in found.items() if k != "command"} == {
        k: v for k, v in given.items() if k != "command"
    }


HOSTILE = [
    "echo 'a'\"b\"`c`$(d)",
    "'; rm -rf / #",
    "a\nb\n",
    "$HOME ${x:-y} !! \\",
    "é 漢 \u202e",
    "--",
    "-c",
    "x'\"'\"'y",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_the_shell_of_the_host_hands_it_over_as_it_was(command):
    found = inside(
        "Bash", {"command": command}, cwd="/tmp", project=None, program="/usr/bin/printf"
    )
    assert found is not None
    line = str(found["command"]).replace("/usr/bin/printf run", "/usr/bin/printf '%s\\0'", 1)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[-2] == command.encode()


@given(
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
)
def test_no_text_gets_out_of_its_quotes(command):
    if command.strip():
        assert rewritten(command)[-3:] == ["bash", "-c", command]


@pytest.mark.parametrize("command", [None, 5, "", "  ", "a\0b", "x" * 200_000, ["ls"]])
def test_what_no_shell_could_run_is_refused(command):
    with pytest.raises(BadInput):
        inside("Bash", {"command": command}, cwd="/tmp", project=None, program=PROGRAM)


@pytest.mark.parametrize("timeout", ["5", [1], True])
def test_a_timeout_that_is_no_number_is_refused(timeout):
    with pytest.raises(BadInput):
        inside(
            "Bash", {"command": "ls", "timeout": timeout}, cwd="/tmp", project=None, program=PROGRAM
        )


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [({}, "120"), ({"timeout": 1500}, "1.5"), ({"timeout": -1}, "0.01"), ({"run_in_background": True}, "86400"), ({"timeout": 1e30}, "86400")],
)  # fmt: skip
def test_the_time_of_the_call_is_the_time_of_the_run(fields, seconds):
    words = rewritten("ls", **fields)
    assert words[words.index("--timeout") + 1] == seconds


def test_below_the_project_the_whole_project_is_given(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = inside(
        "Bash", {"command": "ls"}, cwd=str(below), project=str(tmp_path), program=PROGRAM
    )
    assert found is not None
    words = shlex.split(str(found["command"]))
    assert words[words.index("--workspace") + 1] == f"{tmp_path}:rw"
    assert words[words.index("--cwd") + 1] == "/workspace/a/b"


@pytest.mark.requirement("FS-1")
def test_outside_of_the_project_nothing_is_given(tmp_path):
    project, other = tmp_path / "project", tmp_path / "project-other"
    project.mkdir()
    other.mkdir()
    (project / "link").symlink_to(other)
    wanted = {"project": str(project), "program": PROGRAM}
    for cwd in (other, project / "link", tmp_path, "/"):
        with pytest.raises(Denied) as refused:
            inside("Bash", {"command": "ls"}, cwd=str(cwd), **wanted)
        assert refused.value.code == "CW-HOOK-OUTSIDE-PROJECT"
    assert inside("Bash", {"command": "ls"}, cwd=str(project), **wanted) is not None


def test_a_directory_that_is_not_there_is_refused():
    with pytest.raises(BadInput):
        inside("Bash", {"command": "ls"}, cwd="/nowhere/at/all", project=None, program=PROGRAM)


@pytest.mark.parametrize("tool", sorted(OTHER_SHELLS))
def test_other_ways_to_start_programs_are_denied(tool):
    with pytest.raises(Denied):
        inside(tool, {"command": "ls"}, cwd="/tmp", project=None, program=PROGRAM)


def test_tools_that_start_nothing_stay_as_they_are():
    assert inside("Read", {"file_path": "/a"}, cwd="/tmp", project=None, program=PROGRAM) is None


def test_the_wish_to_leave_the_hosts_own_sandbox_is_not_handed_on():
    given = {"command": "ls", "dangerouslyDisableSandbox": True, "timeout": 5}
    assert cautious("Bash", given) == {"command": "ls", "timeout": 5}
    assert cautious("Bash", {"command": "ls"}) is None
    assert cautious("Read", given) is None
