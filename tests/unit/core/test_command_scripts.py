"""Which word of a command is a script that can be given as a file."""

from __future__ import annotations

import subprocess

import pytest

from cellwall.core.command_scripts import MAX_ARGUMENT_BYTES, long_script, run_from_file

LONG = "x" * (MAX_ARGUMENT_BYTES + 1)


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("sh", "-c", LONG), 2),
        (("/bin/bash", "-l", "-c", LONG, "zero"), 3),
        (("bash", "-euo", "pipefail", "-c", LONG), 4),
        (("bash", "-lc", LONG), 2),
        (("python3.12", "-X", "utf8", "-Ic", LONG), 4),
        (("sh", "-c", "é" * (MAX_ARGUMENT_BYTES // 2 + 1)), 2),
        (("sh", "-c", LONG[:-1]), None),
        (("sh", "-c", "echo", LONG), None),
        (("sh", "-c", LONG, LONG), None),
        (("sh", "run.sh", "-c", LONG), None),
        (("sh", "-c", "-c", LONG), None),
        (("sh", "--", "-c", LONG), None),
        (("printf", "-c", LONG), None),
        (("python3-config", "-c", LONG), None),
        ((LONG,), None),
        ((), None),
    ],
)
def test_only_the_script_of_an_interpreter_is_found(argv, found):
    assert long_script(argv) == found


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sh", "-c", f"# {LONG}\necho $0 $1; read x; echo $x", "zero", "one"), "zero one\nin\n"),
        (
            ("python3", "-c", f"#{LONG}\nimport sys; print(sys.argv, input())", "a"),
            "['-c', 'a'] in\n",
        ),
    ],
    ids=["sh", "python"],
)
def test_script_in_a_file_has_the_arguments_and_the_input_of_the_command(
    argv, said, is_removed, tmp_path
):
    path = tmp_path / "script"
    command, script = run_from_file(argv, str(path), is_removed=is_removed)
    path.write_bytes(script)
    done = subprocess.run(command, input="in\n", capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (said, "")
    assert path.exists() != is_removed
