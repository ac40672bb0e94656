"""JavaScript and TypeScript in live sandboxes: variables live on, and the last value comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import cellwall
from cellwall.core.outcomes import Status
from cellwall.sandbox import languages
from cellwall.sandbox.linux import live_cell
from shared_sandbox import shared_sandbox

pytestmark = pytest.mark.requirement("LANG-2")


@pytest.fixture(scope="module")
def sbx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cellwall.Sandbox]:
    with shared_sandbox(tmp_path_factory) as sandbox:
        yield sandbox


@pytest.mark.requirement("LANG-1")
@pytest.mark.parametrize(
    ("language", "declaration"),
    [("javascript", "let x = 41"), ("typescript", "let x: number = 41 as number")],
)
def test_variables_live_on_and_may_be_declared_again(sbx, language, declaration):
    first = sbx.run_code(declaration, language=language)
    assert (first.status, first.value, first.text, first.state) == (Status.OK, None, None, "kept")
    assert sbx.run_code("x + 1", language=language).value == 42
    assert sbx.run_code("let x = 'new'; x", language=language).value == "new"
    assert sbx.run_code("const y = 1; class K {}", language=language).status is Status.OK
    assert sbx.run_code("const y = 2; class K {}; y", language=language).value == 2


@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        ("null", None, "null"),
        ("undefined", None, None),
        ("({a: [1, 2.5, null, true, undefined], f() {}})", {"a": [1, 2.5, None, True, None]}, None),
        ("new Date(0)", "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"),
        ("new Uint8Array([1, 2])", [1, 2], None),
        ("'é\\ud800'", "é\ufffd", None),
        ("NaN", None, "NaN"),
        ("10n", None, "10n"),
        ("new Map([[1, 2]])", None, "Map(1) { 1 => 2 }"),
        ("const a = {}; a.a = a; a", None, "<ref *1> { a: [Circular *1] }"),
        ("({get a() { throw 1 }})", None, None),
        ("await new Promise((done) => setTimeout(done, 5, 7))", 7, "7"),
        ("(async () => 8)()", 8, "8"),
        ("JSON.parse('{\"__proto__\": 1}')", {"__proto__": 1}, None),
    ],
)
def test_value_of_the_last_expression(sbx, code, value, text):
    done = sbx.run_code(code, language="javascript")
    assert (done.status, done.value, done.error) == (Status.OK, value, None)
    assert text is None or done.text == text


def test_output_is_apart_from_the_value_and_rich_results_come_back(sbx):
    done = sbx.run_code(
        "console.log('out'); console.error('err');"
        "const page = {[Symbol.for('Jupyter.display')]: () => ({'text/html': '<b>1</b>'})};"
        "display(page); page",
        language="javascript",
    )
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert [each["html"] for each in done.results] == ["<b>1</b>"] * 2


@pytest.mark.parametrize(
    ("code", "kind", "traceback"),
    [
        ("function f() {\n  throw new TypeError('bad')\n}\nf()", "TypeError",
         "TypeError: bad\n    at f (<code-N>:2:9)\n    at <code-N>:4:1\n"),
        ("await (async () => { null.x })()", "TypeError", None),
        ("let q = ;", "SyntaxError",
         "<code-N>:1\nlet q = ;\n        ^\nSyntaxError: Unexpected token ';'\n"),
        ("throw {a: 1}", "Object", "Uncaught { a: 1 }\n"),
        ("throw new Error('a', {cause: new Error('b')})", "Error",
         "Error: a\n    at <code-N>:1:7\nCaused by: Error: b\n    at <code-N>:1:30\n"),
    ],
)  # fmt: skip
def test_error_has_a_traceback_of_the_code_alone(sbx, code, kind, traceback):
    done = sbx.run_code(code, language="javascript")
    assert (done.status, done.exit_code, done.state) == (Status.FAILED, 1, "kept")
    assert (done.error["type"], done.error["traceback"]) == (kind, done.stderr)
    assert not any(word in done.stderr for word in (".cellwall", "node:", "ext:", "/opt"))
    number = done.stderr.partition("<code-")[2].partition(">")[0]
    if traceback is not None:
        assert done.stderr == traceback.replace("-N", f"-{number}")


def test_imports_stay_and_modules_run(sbx):
    code = (
        "import fs, {existsSync as exists} from 'node:fs'\nimport * as path from 'path'\n"
        "[typeof fs.readFileSync, exists('/workspace'), path.join('a', 'b')]"
    )
    assert sbx.run_code(code, language="javascript").value == ["function", True, "a/b"]
    assert sbx.run_code("path.sep + require('path').sep", language="javascript").value == "//"
    sbx.files.write("own.mjs", "export const mine = 5")
    own = "import {mine} from './own.mjs'\nmine"
    assert sbx.run_code(own, language="javascript").value == 5
    late = (
        "console.log('a');\nimport os from 'node:os';\nexport const b = 1; console.log(typeof os)"
    )
    done = sbx.run_code(late, language="javascript")
    assert (done.stdout, done.stderr) == ("a\nobject\n", "")


def test_types_are_removed_whatever_they_are(sbx):
    code = (
        "import {join, type ParsedPath} from 'node:path'\nenum Colour {Red, Blue}\n"
        "class Point { constructor(public x: number) {} }\ninterface Named { name: string }\n"
        "[Colour.Blue, new Point(3).x]"
    )
    assert sbx.run_code(code, language="typescript").value == [1, 3]
    assert sbx.run_code("join('a', Colour[0])", language="typescript").value == "a/Red"
    done = sbx.run_code("let bad: = 3", language="typescript")
    assert (done.error["type"], "Unexpected token" in done.error["message"]) == (
        "SyntaxError",
        True,
    )


def test_exit_keeps_the_variables_and_variables_of_one_call_end_with_it(sbx):
    sbx.run_code("let kept = 1", language="javascript")
    assert sbx.run_code("process.exit(4)", language="javascript").exit_code == 4
    assert sbx.run_code("process.exitCode = 3; 1", language="javascript").exit_code == 3
    given = sbx.run_code("[kept, process.env.ONLY]", language="javascript", envs={"ONLY": "now"})
    assert given.value == [1, "now"]
    assert sbx.run_code("[kept, process.env.ONLY ?? null]", language="javascript").value == [
        1,
        None,
    ]


def test_limit_of_time_ends_computing_code_and_keeps_the_variables(sbx):
    sbx.run_code("let kept = 2", language="javascript")
    over = sbx.run_code("while (true) {}", language="javascript", timeout=1)
    assert (over.status, over.limit, over.state) == (Status.LIMIT, "wall", "kept")
    assert sbx.run_code("kept", language="javascript").value == 2


@pytest.mark.parametrize(
    "code", ["await new Promise((done) => setTimeout(done, 30_000))", "for(;;);"]
)
def test_interrupted_code_says_that_the_variables_are_lost(sbx, code):
    sbx.run_code("let gone = 1", language="javascript")
    started = threading.Event()
    ended = []

    def run() -> None:
        ended.append(
            sbx.run_code(
                f"console.log('started'); {code}",
                language="javascript",
                on_stdout=lambda _text: started.set(),
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(30)
    finally:
        assert sbx.interrupt()
        thread.join(30)
    assert (ended[0].status, ended[0].state) == (Status.FAILED, "lost")
    assert sbx.run_code("typeof gone", language="javascript").value == "undefined"


@pytest.mark.requirement("LANG-1")
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_single_run_has_a_value_reads_input_and_waits_for_its_timers(language):
    code = "setTimeout(() => console.log('late'), 20); require('fs').readFileSync(0, 'utf8')"
    done = cellwall.run_code(code, language=language, stdin="given")
    assert (done.value, done.stdout, done.stderr) == ("given", "late\n", "")


def test_code_with_standard_input_runs_in_an_interpreter_of_its_own(sbx):
    sbx.run_code("let mine = 1", language="javascript")
    code = "[typeof mine, require('fs').readFileSync(0, 'utf8')]"
    done = sbx.run_code(code, language="javascript", stdin="in")
    assert (done.value, done.state) == (["undefined", "in"], None)
    assert sbx.run_code("mine", language="javascript").value == 1


@pytest.mark.requirement("LANG-1")
def test_node_runs_javascript_where_deno_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(languages, "_deno", lambda: None)
    if languages._node() is None:
        pytest.skip("Node: apt-get install nodejs")
    with cellwall.Sandbox.create() as sandbox:
        sandbox.run_code("let x = 41; const {join} = require('path')", language="javascript")
        done = sandbox.run_code("[x + 1, join('a', 'b'), typeof Deno]", language="javascript")
        assert done.value == [42, "a/b", "undefined"]
        error = sandbox.run_code("null.x", language="javascript").error
        assert "node:" not in error["traceback"]


@pytest.mark.requirement("LIM-6")
def test_number_of_interpreters_is_bounded(sbx, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_cell, "_MAX_INTERPRETERS", 2)
    for language in ("javascript", "typescript"):
        assert sbx.run_code("20 + 1", language=language).value == 21  # the control
    refused = sbx.run_code("20 + 1")
    assert refused.error.code == "CW-TOO-MANY-CONTEXTS"


@pytest.mark.requirement("LANG-3")
def test_tools_of_the_host_are_called_with_promises():
    def add(first: int, second: int) -> int:
        return first + second

    with cellwall.Sandbox.create(tools={"add": add}) as sandbox:
        named = "await tools.add({first: 20, second: 1})"
        done = sandbox.run_code(f"[{named}, await tools.add(40, 2)]", language="javascript")
        assert done.value == [21, 42]
        refused = sandbox.run_code("await tools.add('a', {})", language="typescript")
        assert refused.error["type"] == "ToolError"
