"""The unmodified code interpreter SDK: results, output, errors and figures."""

from __future__ import annotations

import base64

import pytest
from e2b import NotFoundException, SandboxException
from e2b_code_interpreter import Context, Sandbox
from e2b_code_interpreter.charts import LineChart

from interfaces.e2b.conftest import options
from interfaces.http.running_service import RunningService, running_service
from python_data import python_data_home

pytestmark = pytest.mark.requirement("INT-2")


def test_code_has_a_result_output_and_state(sandbox: Sandbox):
    heard: list[str] = []
    first = sandbox.run_code("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx",
                             on_stdout=lambda message: heard.append(message.line))  # fmt: skip
    assert (first.text, first.error) == ("20", None)
    assert ("".join(first.logs.stdout), "".join(first.logs.stderr)) == ("out\n", "err\n")
    assert heard == first.logs.stdout
    second = sandbox.run_code("import os\nx + 1, os.environ['WHO']", envs={"WHO": "me"})
    assert second.text == "(21, 'me')"
    assert second.execution_count == first.execution_count + 1


def test_rich_value_is_the_main_result_in_all_its_forms(sandbox: Sandbox):
    done = sandbox.run_code(
        "class Page:\n"
        "    def __repr__(self): return 'page'\n"
        "    def _repr_html_(self): return '<b>page</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "display(Page())\n"
        "Page()"
    )
    assert [(each.text, each.html) for each in done.results] == [("page", "<b>page</b>")] * 2
    assert [each.is_main_result for each in done.results].count(True) == 1
    assert base64.b64decode(done.results[0].png) == b"\x89PNG"


def test_exception_of_code_is_an_error_of_the_execution(sandbox: Sandbox):
    error = sandbox.run_code("1 / 0").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in error.traceback
    assert sandbox.run_code("raise SystemExit(3)").error.value == "3"


def test_other_languages_run(sandbox: Sandbox):
    assert "".join(sandbox.run_code("echo $((20 + 1))", language="bash").logs.stdout) == "21\n"
    with pytest.raises(SandboxException, match="unknown language"):
        sandbox.run_code("1", language="cobol")


def test_contexts_have_variables_and_a_directory_of_their_own(sandbox: Sandbox):
    (first,) = sandbox.list_code_contexts()
    sandbox.files.make_dir("inner")
    other = sandbox.create_code_context(cwd="/workspace/inner")
    assert [each.id for each in sandbox.list_code_contexts()] == [first.id, other.id]
    sandbox.run_code("x = 'first'", context=first)
    sandbox.run_code("x = 'other'", context=other)
    where = "import os\nx, os.getcwd()"
    assert sandbox.run_code(where).text == "('first', '/workspace')"
    assert sandbox.run_code(where, context=other).text == "('other', '/workspace/inner')"
    sandbox.restart_code_context(other)
    assert sandbox.run_code("x", context=other).error.name == "NameError"
    assert sandbox.run_code("import os\nos.getcwd()", context=other).text == "'/workspace/inner'"
    sandbox.remove_code_context(other)
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=other)
    assert sandbox.run_code("x", context=first).text == "'first'"
    sandbox.restart_code_context(first)
    assert sandbox.run_code("x").error.name == "NameError"


@pytest.mark.requirement("LANG-2")
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_scripts_have_state_results_and_contexts(sandbox: Sandbox, language: str):
    sandbox.files.make_dir("scripts")
    kind = ": number" if language == "typescript" else ""
    sandbox.run_code(f"let x{kind} = 41", language=language)
    done = sandbox.run_code("console.log('out'); x + 1", language=language)
    assert (done.text, done.logs.stdout, done.error) == ("42", ["out\n"], None)
    error = sandbox.run_code("null.x", language=language).error
    assert (error.name, ".cellwall" in error.traceback) == ("TypeError", False)
    other = sandbox.create_code_context(cwd="/workspace/scripts", language=language)
    assert other.language == language
    where = "[typeof x, process.cwd()]"
    assert sandbox.run_code(where, context=other).text == "[ 'undefined', '/workspace/scripts' ]"
    sandbox.run_code("let x = 'other'", context=other)
    assert sandbox.run_code("x", language=language).text == "41"
    sandbox.restart_code_context(other)
    assert sandbox.run_code(where, context=other).text == "[ 'undefined', '/workspace/scripts' ]"
    sandbox.remove_code_context(other)


def test_context_that_cannot_be_made_is_refused(sandbox: Sandbox):
    with pytest.raises(SandboxException, match="400"):
        sandbox.create_code_context(cwd="/no/such/directory")
    with pytest.raises(SandboxException, match="501"):
        sandbox.create_code_context(language="bash")
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=Context("other", "python", "/"))
    assert len(sandbox.list_code_contexts()) == 1


def test_refused_code_is_an_error_and_is_recorded(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("cellwall-e2b-refused")
    rules = home / "rules.toml"
    rules.write_text('[permissions]\nallow = ["Bash", "Read", "Write"]\ndeny = ["Code"]\n')
    config = f'[policy]\nfiles = ["{rules}"]\n'
    with (
        running_service(home, config=config) as service,
        Sandbox.create(**options(service)) as sandbox,
    ):
        assert sandbox.commands.run("echo allowed").stdout == "allowed\n"
        with pytest.raises(SandboxException, match="403"):
            sandbox.run_code("1 + 1")
        with service.client("owner") as client:
            found = client.get("/v1/audit", params={"session": sandbox.sandbox_id}).json()
        assert "deny" in str(found)


def test_client_that_leaves_ends_its_run(service: RunningService):
    with Sandbox.create(**options(service)) as sandbox:
        with pytest.raises(SandboxException):
            sandbox.run_code("import time\ntime.sleep(600)", timeout=1)
        assert sandbox.run_code("1 + 1").text == "2"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long  # builds the template `python-data`
def test_figures_have_pictures_and_their_data(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("cellwall-e2b-charts")
    (home / "templates").symlink_to(f"{python_data_home(tmp_path_factory)}/templates")
    with (
        running_service(home) as service,
        Sandbox.create("python-data", **options(service)) as sandbox,
    ):
        done = sandbox.run_code(
            "import matplotlib.pyplot as plt\n"
            "plt.plot([1, 2], [3, 4], label='rise')\n"
            "plt.figure()\n"
            "_ = plt.plot(range(40_000))"
        )
        assert done.error is None
        first, second = done.results
        assert base64.b64decode(first.png).startswith(b"\x89PNG")
        assert isinstance(first.chart, LineChart)
        assert [(each.label, each.points) for each in first.chart.elements] == [
            ("rise", [(1, 3), (2, 4)])
        ]
        assert (second.png is not None, second.chart) == (True, None)  # too large for its data
