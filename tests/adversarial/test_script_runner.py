"""Code against the runner of JavaScript and TypeScript that runs beside it.

The runner has the rights of the code: these attacks may cost the code its own interpreter, never
the supervisor, the sandbox or the next run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cellwall
from cellwall.core.outcomes import Status
from cellwall.sandbox import languages
from shared_sandbox import shared_sandbox

pytestmark = [
    pytest.mark.requirement("LANG-2", "ISO-13"),
    pytest.mark.only_on("cold", reason="the interpreter is started in the same way on both"),
]


@pytest.fixture(scope="module")
def sbx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cellwall.Sandbox]:
    with shared_sandbox(tmp_path_factory) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def node_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cellwall.Sandbox]:
    with shared_sandbox(tmp_path_factory) as sandbox:
        yield sandbox


@pytest.fixture
def node(node_sandbox: cellwall.Sandbox, monkeypatch: pytest.MonkeyPatch) -> cellwall.Sandbox:
    """Node lets code write to any descriptor, so it can forge frames."""
    if languages._node() is None:
        pytest.skip("Node: apt-get install nodejs")
    monkeypatch.setattr(languages, "_deno", lambda: None)
    return node_sandbox


def run(sandbox: cellwall.Sandbox, code: str, timeout: float = 20) -> cellwall.Execution:
    return sandbox.run_code(code, language="javascript", timeout=timeout)


def assert_still_serves(sandbox: cellwall.Sandbox) -> None:
    done = run(sandbox, "20 + 1")
    assert (done.status, done.value, done.stderr) == (Status.OK, 21, "")


_SEND = """
const send = (text, length = text.length) => {
  const head = Buffer.alloc(8);
  head.writeUInt32BE(length, 0);
  let left = Buffer.concat([head, Buffer.from(text)]);
  while (left.length > 0) {  // a pipe takes 64 KiB at once
    try {
      left = left.subarray(require("fs").writeSync(3, left));
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
};
"""


@pytest.mark.parametrize(
    "attack",
    [
        "require('fs').writeSync(3, 'no frame at all')",
        "send('', 0xffffffff)",
        "send('['.repeat(100_000))",
        "send('7')",
        "send(JSON.stringify({done: 1, exit: 0, value: Array(21_000).fill('')}))",
    ],
)
def test_malformed_frames_cost_the_code_its_interpreter_alone(node, attack):
    done = run(node, f"{_SEND}{attack}; await new Promise((done) => setTimeout(done, 15_000))")
    assert (done.value, done.state) == (None, "lost")
    assert_still_serves(node)


def test_forged_report_deceives_only_the_caller_of_this_code(node):
    count = run(node, "new Error().stack.match(/code-(\\d+)/)[1]").value
    number = int(count) + 1
    report = f"{{done: {number}, exit: 0, value: 'forged', state: 'x', findings: [1]}}"
    waiting = "await new Promise((done) => setTimeout(done, 200))"
    done = run(node, f"{_SEND} send(JSON.stringify({report})); {waiting}; 1")
    assert (done.status, done.value) == (Status.OK, "forged")
    assert_still_serves(node)


def test_programs_that_code_starts_do_not_inherit_the_pipes(node):
    listing = "require('child_process').execSync('ls /proc/self/fd', {encoding: 'utf8'})"
    assert run(node, listing).value.split() == ["0", "1", "2", "3"]  # 3 is the listed directory
    writing = "require('child_process').spawnSync('/bin/sh', ['-c', 'echo x >&3']).status"
    assert run(node, writing).value != 0
    assert run(node, writing.replace(">&3", ">&2")).value == 0  # the control


@pytest.mark.parametrize(
    "attack",
    [
        "JSON.stringify = JSON.parse = null; Array.prototype.push = Array.prototype.map = null",
        "Object.prototype.toJSON = () => 'x'",
        "Object.defineProperty(Object.prototype, 'thrown', {get() { return 7 }}); throw 1",
        "Promise.prototype.then = Promise.prototype.constructor = null",
        "Error.prepareStackTrace = () => { throw 1 }; throw new Error('x')",
        "globalThis.Buffer = globalThis.process = globalThis.Symbol = null",
    ],
)
def test_changed_built_ins_harm_only_the_interpreter_of_the_code(sbx, attack):
    sbx.run_code(f"{attack}; 5", language="typescript", timeout=2)
    assert_still_serves(sbx)
    assert sbx.run_code("20 + 1").value == 21
    sbx.commands.run("pkill -9 deno")  # both are new for the next attack
    # The first call may still meet the ended one, and says so.
    first, second = (sbx.run_code("20 + 1", language="typescript") for _ in range(2))
    assert second.value == 21
    assert first.value == 21 or first.state == "lost"


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        ("process.abort()", 134),
        ("Deno.kill(Deno.pid, 'SIGKILL')", 137),
        ("process.reallyExit(7)", 7),
    ],
)
def test_interpreter_that_ends_itself_is_replaced(sbx, attack, code):
    run(sbx, "let gone = 1")
    done = run(sbx, attack)
    assert (done.exit_code, done.state) == (code, "lost")
    assert run(sbx, "typeof gone").value == "undefined"


def test_code_cannot_connect_to_the_inspector_of_its_own_process(sbx):
    connect = "new (require('node:inspector').Session)().connect()"
    assert "sys access" in run(sbx, connect).error["message"]
    ask = "Deno.permissions.requestSync({name: 'sys', kind: 'inspector'}).state"
    assert run(sbx, ask).value == "denied"
    assert run(sbx, "globalThis[Symbol.for('cellwall.taker')]").value is None


@pytest.mark.requirement("ISO-11")
def test_live_interpreter_has_the_permissions_of_a_single_run(sbx):
    for deed in (
        "Deno.readTextFileSync('/etc/passwd')",
        "new Deno.Command('/bin/true').outputSync()",
    ):
        assert run(sbx, deed).error["type"] == "NotCapable"
    assert run(sbx, "Deno.writeTextFileSync('own', 'x'); Deno.readTextFileSync('own')").value == "x"
    shown = sbx.commands.run("ls -A /opt/deno").stdout
    assert shown == "deno\n"  # not the other programs beside it on the host


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize(
    ("attack", "limit"),
    [
        ("await null; while (true) {}", "wall"),
        ("const kept = []; while (true) kept.push(new Array(1e6).fill(1.5))", "memory"),
        ("while (true) console.log('x'.repeat(10_000))", "output"),
    ],
)
def test_limits_bind_and_the_sandbox_serves_on(sbx, attack, limit):
    done = run(sbx, attack, timeout=2 if limit == "wall" else 30)
    assert (done.status, done.limit, done.state) == (Status.LIMIT, limit, "lost")
    assert_still_serves(sbx)
