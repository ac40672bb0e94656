"""The SDK as a user calls it, against the real sandbox."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import cellwall
from cellwall import Status


@pytest.mark.requirement("LANG-2")
@pytest.mark.smoke
def test_value_of_the_last_expression_comes_back():
    done = cellwall.run_code("x = 20\nx + 1")
    assert (done.status, done.value, done.text, done.stdout) == (Status.OK, 21, "21", "")


@pytest.mark.requirement("LANG-2")
def test_a_value_that_json_cannot_carry_comes_as_text_only():
    done = cellwall.run_code("{1, 2}")
    assert (done.value, done.text) == (None, "{1, 2}")


@pytest.mark.requirement("ERR-2")
@pytest.mark.smoke
def test_an_exception_of_the_code_is_its_own_failure_with_its_own_lines():
    done = cellwall.run_code("def f():\n    return 1 / 0\nf()")
    assert (done.status, done.exit_code) == (Status.FAILED, 1)
    assert done.error["type"] == "ZeroDivisionError"
    assert "return 1 / 0" in done.stderr
    assert "python_runner" not in done.stderr
    with pytest.raises(cellwall.RunFailed):
        done.raise_for_status()


@pytest.mark.requirement("LANG-1")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print(6 * 7)"),
        ("shell", "echo $((6 * 7))"),
        ("javascript", "console.log(6 * 7)"),
        ("typescript", "const x: number = 6; console.log(x * 7)"),
    ],
)
def test_each_language_runs(language, code):
    done = cellwall.run_code(code, language=language)
    assert (done.status, done.stdout, done.stderr) == (Status.OK, "42\n", "")


def test_an_unknown_language_is_told_what_there_is():
    with pytest.raises(cellwall.BadInput, match="python") as caught:
        cellwall.run_code("x", language="cobol")
    assert caught.value.code == "CW-UNKNOWN-LANGUAGE"


@pytest.mark.requirement("FS-7")
@pytest.mark.smoke
def test_files_live_as_long_as_the_sandbox():
    with cellwall.Sandbox.create() as sbx:
        sbx.files.write("deep/a.txt", "hi")
        sbx.files.write("b.bin", bytes(range(256)))
        assert sbx.commands.run("cat deep/a.txt; echo more >> deep/a.txt").stdout == "hi"
        assert sbx.files.read("deep/a.txt") == "himore\n"
        assert sbx.files.read_bytes("b.bin") == bytes(range(256))
        assert [entry.path for entry in sbx.files.list(".")] == ["b.bin", "deep"]
        sbx.files.move("b.bin", "c.bin")
        assert (sbx.files.exists("b.bin"), sbx.files.exists("c.bin")) == (False, True)
        assert sbx.files.stat("c.bin").size_bytes == 256
        sbx.files.make_dir("empty/inner")
        sbx.files.remove("deep")
        assert sorted(entry.name for entry in sbx.files.list(".")) == ["c.bin", "empty"]
        with pytest.raises(cellwall.CellwallError) as caught:
            sbx.files.read("../../etc/passwd")
        assert caught.value.code == "CW-PATH-OUTSIDE"


def test_output_comes_as_it_is_made():
    with cellwall.Sandbox.create() as sbx:
        seen = []
        done = sbx.commands.run(
            "echo out; echo err >&2", on_stdout=seen.append, on_stderr=seen.append
        )
        assert sorted(seen) == ["err\n", "out\n"]
        assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_an_error_of_the_listener_ends_the_run_and_comes_back():
    def listener(_text: str) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        cellwall.run_command(["yes"], on_stdout=listener, timeout=20)


@pytest.mark.requirement("ISO-3")
@pytest.mark.smoke
def test_only_named_variables_reach_the_code(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    with cellwall.Sandbox.create(envs={"MINE": "1"}) as sbx:
        done = sbx.commands.run("env", envs={"ALSO": "2"})
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert {"MINE", "ALSO"} <= names
    assert "hunter2" not in done.stdout


def test_stdin_is_given_whole_and_ends():
    with cellwall.Sandbox.create() as sbx:
        data = "x" * 300_000
        assert sbx.commands.run("wc -c", stdin=data).stdout.strip() == "300000"
        assert sbx.commands.run("cat").stdout == ""
        assert sbx.commands.run("true", stdin=data).status is Status.OK


def test_binary_and_missing_output_are_fine():
    done = cellwall.run_command(["head", "-c", "1000", "/dev/urandom"])
    assert len(done.outcome.stdout_bytes) == 1000
    assert cellwall.run_command(["true"]).stdout == ""


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("domain", ["*", "*.com", "*.co.uk", "https://example.com", "a b", ""])
def test_a_domain_that_is_none_is_refused_with_a_hint(domain):
    done = cellwall.run_code("print(1)", allow_domains=[domain])
    assert (done.status, done.outcome.error.code) == (Status.ERROR, "CW-BAD-DOMAIN")
    assert done.outcome.error.hint
    with pytest.raises(cellwall.CellwallError):
        done.raise_for_status()


def test_one_text_is_not_taken_for_a_list_of_domains():
    with pytest.raises(cellwall.CellwallError, match="list of texts"):
        cellwall.run_code("print(1)", allow_domains="example.com")


def test_an_ended_sandbox_says_so():
    sbx = cellwall.Sandbox.create()
    sbx.kill()
    with pytest.raises(cellwall.BadInput) as caught:
        sbx.commands.run("true")
    assert caught.value.code == "CW-SANDBOX-ENDED"


@pytest.mark.requirement("INT-1")
def test_async_sandbox_can_be_entered_or_awaited():
    async def main():
        async with cellwall.AsyncSandbox.create() as first:
            done = await first.run_code("6 * 7")
            await first.files.write("a", "b")
            text = await first.files.read("a")
        second = await cellwall.AsyncSandbox.create()
        other = await second.commands.run(["echo", "hi"])
        await second.kill()
        return done.value, text, other.stdout

    assert anyio.run(main) == (42, "b", "hi\n")


@pytest.mark.requirement("LIM-5")
def test_usage_is_in_the_result():
    usage = cellwall.run_code("sum(range(2_000_000))").outcome.usage
    assert 0 < usage.cpu_s < usage.wall_s * 4
    assert usage.memory_peak > 1_000_000


@pytest.mark.requirement("ERR-2")
def test_a_missing_program_is_not_output_of_the_code():
    done = cellwall.run_command(["no-such-program"])
    assert (done.status, done.stdout, done.stderr) == (Status.ERROR, "", "")
    assert done.error.code == "CW-COMMAND-NOT-FOUND"


@pytest.mark.requirement("INT-1")
def test_blocking_calls_work_from_many_threads_and_inside_a_running_loop():
    with ThreadPoolExecutor(max_workers=8) as threads:
        values = list(threads.map(lambda n: cellwall.run_code(f"{n} + 1").value, range(16)))
    assert values == list(range(1, 17))

    async def notebook():
        return cellwall.run_code("6 * 7").value

    assert anyio.run(notebook) == 42


def test_an_option_that_does_not_exist_is_refused_and_not_dropped():
    with pytest.raises(cellwall.BadInput, match="memroy") as caught:
        cellwall.run_code("1", memroy="64m")
    assert caught.value.code == "CW-UNKNOWN-OPTION"


@pytest.mark.parametrize("wrong", [5, None, ["1"], object()])
def test_code_that_is_no_text_is_refused_by_its_type(wrong):
    with pytest.raises(cellwall.BadInput) as caught:
        cellwall.run_code(wrong)
    assert (caught.value.code, type(wrong).__name__ in caught.value.message) == (
        "CW-NOT-TEXT",
        True,
    )
    assert cellwall.run_code(bytearray(b"6 * 7")).value == 42


def test_a_failed_run_without_network_says_how_to_name_a_host():
    code = "import socket; socket.getaddrinfo('pypi.org', 443)"
    hints = [found.message for found in cellwall.run_code(code).outcome.findings]
    assert any("--allow-domain" in hint for hint in hints)
    assert cellwall.run_code("print('name resolution')").outcome.findings == ()
