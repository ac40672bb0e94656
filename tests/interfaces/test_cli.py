"""`cellwall run` and `cellwall code`: every option, every exit code, every bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from conftest import need
from interfaces.test_cli_process import PROGRAM, cellwall, error_code, in_process, through_shell


def result(*words: str | bytes, **changes) -> dict:
    return json.loads(cellwall(*words, **changes).stdout)


# What runs


def test_output_is_the_programs_own_bytes_and_nothing_else():
    done = cellwall("run", "--", "sh", "-c", r"printf 'a\377\000\033[2Jb'; echo e >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\xff\0\x1b[2Jb", b"e\n")


def test_options_of_the_command_are_its_own_without_a_dash_dash():
    done = cellwall("run", "--timeout", "9", "printf", "%s ", "--json", "--timeout", "x")
    assert (done.returncode, done.stdout) == (0, b"--json --timeout x ")


@pytest.mark.requirement("FS-2")
def test_here_is_this_directory_copy_on_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("mine\n")
    done = cellwall("run", "--here", "--", "sh", "-c", "cat a.txt; echo changed > a.txt")
    assert (done.returncode, done.stdout) == (0, b"mine\n")
    assert (tmp_path / "a.txt").read_text() == "mine\n"
    assert b"cellwall diff act_" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["run", "--", "true"], ["code", "-c", "1"], ["shell"], ["create"], ["mcp"]],
    ids=lambda words: words[0],
)
def test_here_and_a_workspace_exclude_each_other(words):
    command, *rest = words
    done = in_process(command, "--here", "--workspace", ".:rw", *rest)
    assert (done.returncode, error_code(done)) == (125, "CW-USAGE")
    assert b"--here and --workspace exclude each other" in done.stderr


def test_arguments_that_are_no_utf8_arrive_unchanged():
    done = cellwall("run", "--", "printf", "%s", b"\xff\xfe")
    assert done.stdout == b"\xff\xfe"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["-c", "print(6 * 7)"], b"42\n"),
        (["-c", "6 * 7"], b""),  # the value is not output
        (["-l", "sh", "-c", "echo $((6 * 7))"], b"42\n"),
        (["--language", "python3", "-c", "print(1)"], b"1\n"),
    ],
)
@pytest.mark.smoke
def test_code_from_the_command_line(words, printed):
    done = cellwall("code", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, b"")


@pytest.mark.parametrize(
    ("name", "text", "words", "printed"),
    [
        ("a.py", "print(1)", [], b"1\n"),
        ("a.sh", "echo $0", [], b"/code/main.sh\n"),
        ("a.BASH", "echo ok", [], b"ok\n"),
        ("a.unknown", "print(2)", [], b"2\n"),
        ("noextension", "print(3)", [], b"3\n"),
        ("a.py", "echo 4", ["-l", "shell"], b"4\n"),
    ],
)
def test_code_from_a_file_in_the_language_of_its_name(tmp_path, name, text, words, printed):
    (tmp_path / name).write_text(text)
    done = cellwall("code", *words, str(tmp_path / name))
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, b"")


def test_javascript_by_its_extension(tmp_path):
    need(shutil.which("node") or shutil.which("deno") or shutil.which("nodejs"), "JavaScript")
    (tmp_path / "a.js").write_text("console.log(6 * 7)")
    assert cellwall("code", str(tmp_path / "a.js")).stdout == b"42\n"


def test_code_from_standard_input():
    done = cellwall("code", "-", stdin=b"print(40 + 2)\n")
    assert (done.returncode, done.stdout) == (0, b"42\n")


def test_standard_input_reaches_the_program_only_when_asked_for():
    data = bytes(range(256)) * 1000
    assert cellwall("run", "--stdin", "--", "cat", stdin=data).stdout == data
    assert cellwall("run", "--", "cat", stdin=data).stdout == b""
    code = "import sys; print(len(sys.stdin.buffer.read()))"
    assert cellwall("code", "--stdin", "-c", code, stdin=data).stdout == b"256000\n"


@pytest.mark.requirement("ISO-3")
def test_variables_enter_only_when_they_are_named():
    words = ["run", "--env", "A=1", "--env", "B=x=y", "--env", "C=", "--", "env"]
    lines = cellwall(*words, SECRET="hunter2").stdout.decode().splitlines()
    assert {"A=1", "B=x=y", "C="} <= set(lines)
    assert not [line for line in lines if "hunter2" in line]


def test_workspace_modes(tmp_path):
    (tmp_path / "given").write_text("old")
    for mode in ("", ":ro"):
        done = cellwall(
            "run",
            "--workspace",
            f"{tmp_path}{mode}",
            "--",
            "sh",
            "-c",
            "cat given; echo new > given",
        )
        assert (done.stdout, done.returncode != 0) == (b"old", True)
    assert (tmp_path / "given").read_text() == "old"
    cow = cellwall(
        "run", "--workspace", f"{tmp_path}:cow", "--", "sh", "-c", "echo new > given; cat given"
    )
    assert (cow.returncode, cow.stdout) == (0, b"new\n")
    assert (tmp_path / "given").read_text() == "old"
    (kept,) = os.listdir(os.path.join(os.environ["CELLWALL_HOME"], "workspaces"))
    assert (
        cow.stderr.decode()
        == f"cellwall: changes kept as {kept}; see them with: cellwall diff {kept}\n"
    )
    assert (
        cellwall(
            "run", "--workspace", f"{tmp_path}:rw", "--", "sh", "-c", "echo new > given"
        ).returncode
        == 0
    )
    assert (tmp_path / "given").read_text() == "new\n"


def test_findings_are_told_on_standard_error_one_line_each(tmp_path):
    script = (
        r"""printf x > "$(printf 'a\ncellwall: forged\033[2J.lnk')"; chmod u+s /proc/self/exe; :"""
    )
    done = cellwall("run", "--workspace", f"{tmp_path}:rw", "--", "sh", "-c", script)
    (line,) = [x for x in done.stderr.split(b"\n") if b".lnk" in x]
    assert line.startswith(b"cellwall: ")
    assert b"\x1b" not in line
    assert not [x for x in done.stderr.split(b"\n") if x.startswith(b"cellwall: forged")]


# Limits


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize(
    ("words", "script", "limit", "codes", "line"),
    [
        (["--timeout", "0.5"], "sleep 50", "wall", {124}, "(0.5 s); raise it with --timeout"),
        (
            ["--memory", "32m"],
            "python3 -c 'x = bytearray(10 ** 9)'",
            "memory",
            {137},
            "(33554432 bytes); raise it with --memory",
        ),
        (
            ["--processes", "8"],
            "for i in 1 2 3 4 5 6 7 8 9; do sleep 9 & done; wait",
            "processes",
            set(range(1, 256)),
            "(8); raise it with --processes",
        ),
        (
            ["--output", "1k"],
            "while :; do echo y; done",
            "output",
            set(range(1, 256)),
            "(1024 bytes); raise it with --output",
        ),
        (
            ["--disk", "1m"],
            "head -c 9000000 /dev/zero > f; sleep 25",
            "disk",
            set(range(1, 256)),
            "(1048576 bytes); raise it with --disk",
        ),
        (
            ["--file-size", "64k"],
            "exec head -c 9000000 /dev/zero > f",
            "file_size",
            set(range(1, 256)),
            "(65536 bytes); raise it with --file-size",
        ),
        (
            ["--open-files", "64"],
            "python3 -c 'x = [open(\"/dev/null\") for _ in range(100)]'",
            "open_files",
            set(range(1, 256)),
            "(64); raise it with --open-files",
        ),
        (
            ["--timeout", "60", "--cpus", "2"],
            "python3 -c 'import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile 1: pass'",
            None,
            {137},
            "",
        ),
    ],
)
def test_each_limit_by_its_option(words, script, limit, codes, line):
    told = cellwall("run", *words, "--json", "--", "sh", "-c", script)
    outcome = json.loads(told.stdout)
    assert (outcome["limit"], told.stderr) == (limit, b"")
    assert told.returncode in codes
    assert outcome["status"] == ("limit" if limit else "failed")
    done = cellwall("run", *words, "--", "sh", "-c", script)
    assert done.returncode in codes
    mine = [x.decode() for x in done.stderr.splitlines() if x.startswith(b"cellwall: ")]
    name = (limit or "").replace("_", " ")
    assert mine == ([f"cellwall: ended by the {name} limit {line}"] if limit else [])


@pytest.mark.requirement("LIM-1")
def test_the_share_of_processors_is_given_by_its_option():
    # The same work, not the same time: on a busy machine nobody gets a whole processor.
    spin = "import time\nwhile time.thread_time() < 0.3: pass"

    def used(cpus: str) -> dict[str, float]:
        return result("code", "--json", "--cpus", cpus, "-c", spin)["usage"]

    limited = used("0.1")
    # A tenth of a processor with room for noise. The control shows that the work is not as slow
    # without the limit; on a busy machine, in one of several rounds.
    assert limited["cpu_s"] / limited["wall_s"] < 0.3
    assert any(used("1")["wall_s"] < limited["wall_s"] for _ in range(10))


# What Cellwall refuses

REFUSALS = [
    (["run", "--timeout", "abc", "--", "true"], "CW-USAGE"),
    (["run", "--timeout", "0", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--timeout", "-1", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--timeout", "nan", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--timeout", "inf", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--timeout", "1e999", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--cpus", "nan", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--memory", "lots", "--", "true"], "CW-BAD-SIZE"),
    (["run", "--memory", "1", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--memory", "-5m", "--", "true"], "CW-BAD-SIZE"),
    (["run", "--cpus", "many", "--", "true"], "CW-USAGE"),
    (["run", "--cpus", "0", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--processes", "1.5", "--", "true"], "CW-USAGE"),
    (["run", "--processes", "0", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--disk", "", "--", "true"], "CW-BAD-SIZE"),
    (["run", "--output", "0", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--open-files", "1", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--file-size", "1", "--", "true"], "CW-BAD-LIMIT"),
    (["run", "--env", "NOVALUE", "--", "true"], "CW-BAD-ENV"),
    (["run", "--env", "=x", "--", "true"], "CW-BAD-ENV"),
    (["run", "--env", "A-B=x", "--", "true"], "CW-BAD-ENV"),
    (["run", "--workspace", "/nonexistent", "--", "true"], "CW-WORKSPACE-REFUSED"),
    (["run", "--workspace", "/", "--", "true"], "CW-WORKSPACE-REFUSED"),
    (["run", "--workspace", ":rw", "--", "true"], "CW-WORKSPACE-REFUSED"),
    (["run", "--workspace", "/srv:sideways", "--", "true"], "CW-BAD-WORKSPACE"),
    (["run", "--profile", "lenient", "--", "true"], "CW-CONFIG-PROFILE"),
    (["run", "--config", "/nonexistent.toml", "--", "true"], "CW-CONFIG-FILE"),
    (["run", "--policy", "rules.toml", "--", "true"], "CW-POLICY-FILE"),
    (["run", "--allow-domain", "*.com", "--", "true"], "CW-BAD-DOMAIN"),
    (["run", "--secret", "TOKEN", "--", "true"], "CW-VAULT-MISSING"),
    (["run", "--", "no-such-program"], "CW-COMMAND-NOT-FOUND"),
    (["run", "ls -la"], "CW-COMMAND-NOT-FOUND"),
    (["run", "--", "/etc/passwd"], "CW-COMMAND-NOT-EXECUTABLE"),
    (["run", "--template", "nope", "--", "true"], "CW-NO-TEMPLATE"),
    (["run", "--cwd", "/nope", "--", "true"], "CW-CWD-NOT-FOUND"),
    (["run", "--cwd", "/etc/passwd", "--", "true"], "CW-CWD-NOT-FOUND"),
    (["run", "--tiemout", "5", "--", "true"], "CW-USAGE"),
    (["run", "--timeout"], "CW-USAGE"),
    (["bogus"], "CW-USAGE"),
    (["--bogus"], "CW-USAGE"),
    (["code"], "CW-USAGE"),
    (["code", "-c", "1", "file.py"], "CW-USAGE"),
    (["code", "a.py", "b.py"], "CW-USAGE"),
    (["code", "--stdin", "-"], "CW-USAGE"),
    (["code", "-l", "cobol", "-c", "1"], "CW-UNKNOWN-LANGUAGE"),
    (["code", "/nonexistent.py"], "CW-CODE-FILE"),
    (["code", "/"], "CW-CODE-FILE"),
    (["code", "/dev/zero"], "CW-CODE-FILE"),
    (["code", "/etc/passwd/x"], "CW-CODE-FILE"),
    (["code", "x" * 5000], "CW-CODE-FILE"),
    (["code", "--policy", "p", "-c", "1"], "CW-POLICY-FILE"),
    (["diff"], "CW-USAGE"),
    (["diff", "../../etc"], "CW-BAD-ID"),
    (["erase", "../../etc"], "CW-BAD-ID"),
    (["apply", "act_00000000000000000000000000"], "CW-NO-WORKSPACE"),
    (["audit", "tail", "-n", "0"], "CW-USAGE"),
    (["audit", "show", "act_00000000000000000000000000"], "CW-NO-RECORD"),
    (["config", "check", "--profile", "x"], "CW-CONFIG-PROFILE"),
    (["doctor", "--profile", "x"], "CW-CONFIG-PROFILE"),
    (["completion", "tcsh"], "CW-USAGE"),
]


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.parametrize(("words", "code"), REFUSALS)
def test_a_refusal_is_125_with_code_and_mend_and_no_output(words, code):
    done = cellwall(*words)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", code)
    assert b"Traceback" not in done.stderr
    assert os.environ["CELLWALL_HOME"].encode() not in done.stderr


@pytest.mark.requirement("ERR-1")
def test_a_question_that_nobody_can_answer_names_the_option_that_does():
    done = cellwall("erase", "act_00000000000000000000000000")
    assert (done.returncode, error_code(done)) == (125, "CW-NO-TERMINAL")
    assert b"--yes" in done.stderr
    done = cellwall("erase", "--yes", "act_00000000000000000000000000")
    assert (done.returncode, error_code(done)) == (125, "CW-NO-RECORD")


def with_json(words: list[str]) -> list[str]:
    """`--json` as the first option of the innermost command."""
    depth = 2 if words[0] in {"audit", "config"} else 1
    return [*words[:depth], "--json", *words[depth:]]


KEYS = {
    *("status", "exit_code", "stdout", "stderr", "truncated", "limit", "value", "results"),
    *("usage", "decision", "findings", "error", "audit_id"),
}


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.parametrize(("words", "code"), [*REFUSALS, (["run"], "CW-USAGE")])
@pytest.mark.sample(12)
def test_a_refusal_is_one_object_where_json_was_asked_for(words, code):
    done = in_process(*with_json(words))
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (125, b"")
    assert told.keys() >= KEYS
    assert told["status"] == ("denied" if code == "CW-DENIED" else "error")
    assert (told["exit_code"], told["stdout"], told["error"]["code"]) == (None, "", code)
    assert told["error"].keys() == {"code", "message", "hint"}


@pytest.mark.parametrize(
    ("words", "status", "exit_code"),
    [
        (["run", "--json", "--", "true"], "ok", 0),
        (["run", "--json", "--", "false"], "failed", 1),
        (["run", "--json", "--timeout", "0.3", "--", "sleep", "9"], "limit", 124),
        (["run", "--json", "--", "sh", "-c", r"printf '\377\000\033\355\240\200'"], "ok", 0),
        (["code", "--json", "-c", "'\\ud800'"], "ok", 0),
        (["code", "--json", "-c", "float('nan')"], "ok", 0),
        (["code", "--json", "-c", "1 / 0"], "failed", 1),
        (["code", "-c", "print('x' * 1000000)", "--json"], "ok", 0),
        (
            # The code speaks over the result's own descriptor: NaN and a nest are no JSON of ours.
            [
                "code",
                "--json",
                "-c",
                'import os; os.write(3, b\'{"value": [NaN, "\\\\ud800"]}\'); os.close(3)',
            ],
            "ok",
            0,
        ),
    ],
)
def test_every_run_is_one_object_and_nothing_else(words, status, exit_code):
    done = cellwall(*words)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    assert done.stdout.count(b"\n") == 1
    told = json.loads(done.stdout.decode("ascii"), parse_constant=refuse)
    assert (told["status"], told["exit_code"], done.returncode) == (status, exit_code, exit_code)
    assert done.stderr == b""
    assert told.keys() >= KEYS
    json.dumps(told, ensure_ascii=False).encode()  # no lone surrogate in it


def test_the_object_of_a_run_is_that_of_the_contract():
    told = result(
        "code", "--json", "-c", "import sys; print('o'); print('e', file=sys.stderr); 20 + 1"
    )
    usage = told.pop("usage")
    assert usage["wall_s"] > 0
    assert told.pop("audit_id").startswith("evt_")
    who = told["decision"].pop("reason")
    assert who.startswith("asked for explicitly by ")
    assert told == {
        "status": "ok",
        "exit_code": 0,
        "stdout": "o\n",
        "stderr": "e\n",
        "truncated": False,
        "limit": None,
        "value": 21,
        "text": "21",
        "results": [],
        "code_error": None,
        "decision": {"verdict": "allow", "rule": "explicit", "source": "built-in"},
        "findings": [],
        "error": None,
        "workspace_id": None,
        "sandbox_path": "cold",
    }


# Files that are not code


def test_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "f.py")
    done = cellwall("code", str(tmp_path / "f.py"))
    assert (done.returncode, error_code(done)) == (125, "CW-CODE-FILE")


def test_code_that_is_too_large_is_never_read_into_memory(tmp_path):
    with open(tmp_path / "f.py", "wb") as file:
        file.truncate(1 << 40)  # a hole of a tebibyte: reading it would not end
    done = cellwall("code", str(tmp_path / "f.py"))
    assert (done.returncode, error_code(done)) == (125, "CW-CODE-TOO-LARGE")
    endless = through_shell("yes '#' | cellwall code -; exit ${PIPESTATUS[1]}")
    assert (endless.returncode, error_code(endless)) == (125, "CW-CODE-TOO-LARGE")


def test_endless_standard_input_is_refused(tmp_path):
    (tmp_path / "c.toml").write_text('[sandbox]\nmax_stdin_bytes = "1k"\n')
    done = through_shell(
        f"yes | cellwall run --config {tmp_path}/c.toml --stdin -- cat; exit ${{PIPESTATUS[1]}}"
    )
    assert (done.returncode, error_code(done)) == (125, "CW-STDIN-TOO-LARGE")


# Configuration and host


@pytest.mark.requirement("CFG-2")
def test_a_configuration_is_used_and_its_mistakes_are_told_with_their_lines(tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("[limits]\nwall_s = 0.4\n")
    bad.write_text("[limits]\nwall_s = 1\nwal_s = 2\ncpus = 'x'\n")
    slow = cellwall("run", "--config", str(good), "--", "sleep", "9")
    assert slow.returncode == 124
    assert cellwall("run", "--", "sleep", "0.6").returncode == 0  # the control
    assert cellwall("run", "--", "sleep", "9", CELLWALL_CONFIG=str(good)).returncode == 124
    done = cellwall("config", "check", "--config", str(bad))
    assert (done.returncode, done.stdout) == (125, b"")
    told = done.stderr.decode()
    assert f"{bad}:3: limits.wal_s: unknown key. Did you mean limits.wall_s?" in told
    assert f"{bad}:4: limits.cpus:" in told


@pytest.mark.requirement("CFG-2")
def test_the_effective_settings_and_their_schema_are_json():
    shown = json.loads(cellwall("config", "show", "--profile", "paranoid").stdout)
    assert shown["profile"] == "paranoid"
    schema = json.loads(cellwall("config", "schema").stdout)
    assert schema["properties"].keys() == shown.keys()
    ok = cellwall("config", "check")
    assert (ok.returncode, ok.stdout) == (0, b"ok: profile production\n")
    assert b"config.toml: the profile alone counts" in ok.stderr


def test_weak_settings_are_named(tmp_path):
    (tmp_path / "c.toml").write_text("[sandbox]\ndangerously_without_cgroup = true\n")
    done = cellwall("config", "check", "--config", str(tmp_path / "c.toml"))
    assert done.stdout == b"ok: profile production\nweak: sandbox.dangerously_without_cgroup\n"
    assert done.stderr == f"cellwall: the file is {tmp_path / 'c.toml'}\n".encode()


def without_bubblewrap(*words: str) -> subprocess.CompletedProcess:
    """The program in a mount namespace of its own, where an empty directory hides bubblewrap."""
    need(os.geteuid() == 0 and shutil.which("unshare"), "root, to hide bubblewrap by a mount")
    # A search path would not do: programs of the host come from fixed places alone.
    hide = (
        "for place in /usr/bin/bwrap /usr/local/bin/bwrap /bin/bwrap; do "
        "if [ -e $place ]; then mount -t tmpfs none /mnt && mkdir -p /mnt/none && "
        "touch /mnt/none/bwrap && chmod 600 /mnt/none/bwrap && "
        'mount --bind /mnt/none/bwrap $place && umount /mnt; fi; done; exec "$@"'
    )
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", PROGRAM, *words],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.requirement("ISO-4")
def test_without_bubblewrap_nothing_runs(tmp_path):
    words = ["run", "--workspace", f"{tmp_path}:rw", "--", "/usr/bin/touch", "ran"]
    done = without_bubblewrap(*words)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", "CW-LAYER-BUBBLEWRAP")
    assert b"install bwrap with the system's packages" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert cellwall(*words).returncode == 0  # the control
    assert (tmp_path / "ran").exists()


@pytest.mark.requirement("ISO-4", "ISO-12")
def test_doctor_tells_what_is_missing_by_exit_code_and_hint():
    well, ill = cellwall("doctor", "--json"), without_bubblewrap("doctor", "--json")
    assert (well.returncode, json.loads(well.stdout)["usable"]) == (0, True)
    report = json.loads(ill.stdout)
    assert (ill.returncode, report["usable"]) == (1, False)
    missing = [check for check in report["checks"] if check["status"] == "missing"]
    assert {"bubblewrap"} <= {check["name"] for check in missing}
    assert all(check["hint"] for check in missing)
    told = without_bubblewrap("doctor")
    assert (told.returncode, told.stderr) == (1, b"")
    assert b"MISSING bubblewrap" in told.stdout
    assert told.stdout.endswith(b"Sandboxes do not run here.\n")


def test_run_without_a_command_shows_its_help_on_standard_error():
    done = cellwall("run")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"Usage: cellwall run [OPTIONS] -- CMD [ARG]...")


def test_no_variable_of_the_environment_is_an_option():
    done = cellwall("run", "--", "true", CELLWALL_RUN_TIMEOUT="x", CELLWALL_TIMEOUT="x")
    assert done.returncode == 0


@pytest.mark.parametrize("typed", ["rnu", "codee", "doctr"])
def test_a_mistyped_command_is_told_the_nearest_one(typed):
    told = in_process(typed).stderr.decode()
    meant = {"rnu": "run", "codee": "code", "doctr": "doctor"}[typed]
    assert f"Did you mean '{meant}'?" in told
