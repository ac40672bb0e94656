"""The examples of the cookbook, each run as a reader runs it: a program with its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interfaces.served import Served, new_place
from interfaces.test_cli_process import cellwall, person
from python_data import python_data_home
from tiny_index import tiny_index

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 120


def run(
    example: str, *words: str, says: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The example, with what a person types; it must end well and write no traceback."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *words],
        env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning", **environment},
        input=says,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done


@pytest.mark.requirement("LANG-2", "NET-1")
@pytest.mark.long  # builds the template `python-data`
def test_data_analysis_gives_a_chart_and_no_way_out(tmp_path, tmp_path_factory):
    home = python_data_home(tmp_path_factory)
    shown = run("data_analysis.py", str(tmp_path), CELLWALL_HOME=home).stdout
    assert "ok: {'north': 345, 'south': 305}" in shown
    assert "failed: KeyError: 'area'" in shown
    assert (tmp_path / "chart-4.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert re.search(r"step 5: .*collector\.example.*\n  failed: .*URLError", shown)


@pytest.mark.requirement("FS-4")
def test_code_review_changes_nothing_without_a_yes_and_never_a_hook():
    yes, no = (run("code_review.py", says=f"{each}\n").stdout for each in "yn")
    for shown in (yes, no):
        assert "FAILED (failures=1)" in shown
        assert "\nOK\n" in shown  # the bot's own copy
        assert "\n0 .env\n" in shown  # hidden
        assert "added .git/hooks/post-checkout   <- protected name" in shown
    fixed = "return sum(prices) * (1 - discount)\n"
    assert "applied: price.py\n" in yes
    assert "refused: .git/hooks/post-checkout: protected name" in yes
    assert yes.endswith(fixed)
    assert "discarded\n" in no
    assert no.endswith("return sum(prices) - discount\n")


@pytest.mark.requirement("POL-9")
def test_web_research_asks_before_a_page_meets_private_notes():
    no, yes = (run("web_research.py", says=f"{each}\n").stdout for each in "ny")
    for shown in (yes, no):
        assert "The harvest grew by 4 percent." in shown
        assert "ignore all previous instructions" not in shown
        for label in ("untrusted content", "private data", "egress"):
            assert f"| {label}: " in shown
    assert "[CW-RULE-OF-TWO]" in no
    assert "1.2 million" not in no
    assert "1.2 million" in yes  # the control: the notes are there


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Iterator[str]:
    """A configuration with a registry on loopback."""
    folder = tmp_path_factory.mktemp("index")
    with tiny_index(folder):
        yield str(folder / "config.toml")


@pytest.mark.requirement("PKG-1")
def test_package_install_gives_the_package_and_refuses_the_rest(index):
    shown = run("package_install.py", "tiny", says="n\n", CELLWALL_CONFIG=index).stdout
    assert "installed: tiny-1.0-py3-none-any.whl sha256:" in shown
    assert "import tiny: ok" in shown
    assert "reqeusts is a misspelling of requests" in shown
    assert "[CW-PACKAGE-REFUSED]" in shown
    assert "[CW-BAD-PACKAGE]" in shown
    assert "plain pip: exit code 1" in shown


@pytest.mark.requirement("SRV-7")
def test_mcp_gateway_withdraws_a_tool_that_changed():
    text = (EXAMPLES / "mcp_gateway/agent.py").read_text("utf-8")
    add, review = re.findall(r"^    cellwall (.*?)(?:  +#.*)?$", text, re.MULTILINE)
    add = add.replace("examples/", f"{EXAMPLES}/")
    assert cellwall(*add.split()).returncode == 3  # definitions wait
    assert person(*review.split()).returncode == 0
    shown = run("mcp_gateway/agent.py", says="y\ny\n").stdout
    first, second = shown.split("not offered any more: tea-price\n")
    assert "<- ok" in first
    assert "I run as uid 1000 and see ['agent.py', 'server.py'], homes: False" in first
    assert "<- refused" in second
    assert "[CW-DENIED]" in second
    assert "mcp:quarantine" in second


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """The service of the example of approvals, which the example of E2B uses as well."""
    with new_place() as place:
        text = (EXAMPLES / "http_approval/agent.py").read_text("utf-8")
        (echo,) = re.findall(r"^    (echo .*) > asking.toml$", text, re.MULTILINE)
        asking = subprocess.run(["sh", "-c", echo], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        config = place.folder / "cellwall.toml"
        config.write_text(asking.stdout.decode() + config.read_text())
        place.own(config)
        with place.serving() as served:
            yield served


@pytest.mark.requirement("INT-2")
def test_a_program_for_e2b_needs_three_variables(service):
    url = f"{service.url}/e2b"
    token = service.place.token("eve", "user")
    shown = run("e2b_migration.py", E2B_API_KEY=token, E2B_API_URL=url, E2B_SANDBOX_URL=url).stdout
    assert "import cellwall" not in (EXAMPLES / "e2b_migration.py").read_text("utf-8")
    assert shown.splitlines()[:5] == [
        "mean price: 365.0",
        "command: 3 data.csv",
        "in the background: True",
        "error: IndexError - list index out of range",
        "network: URLError",
    ]
    assert "refused: " in shown.splitlines()[5]


@pytest.mark.requirement("POL-8")
def test_a_person_answers_over_http_and_the_bot_cannot(service):
    bot, ann = service.place.token("bot", "user"), service.place.token("ann", "administrator")
    tokens = {"BOT_TOKEN": bot, "ANN_TOKEN": ann}
    yes, no = (
        run("http_approval/agent.py", service.url, says=f"{each}\n", **tokens).stdout
        for each in "yn"
    )
    for shown in (yes, no):
        assert "? | ./deploy.sh production" in shown
        assert "? | a person confirms each deployment" in shown
        assert "the bot says yes: 403 CW-ROLE" in shown
    assert "ok deployed to production" in yes
    assert "deployed to" not in no.partition("ann [y/N]")[2]
    assert "CW-DENIED" in no


@pytest.mark.long  # two runs of a layer; `redteam` itself has its tests
@pytest.mark.requirement("RED-1")
def test_the_job_of_ci_fails_where_an_attack_gets_through(tmp_path):
    job = EXAMPLES / "ci_redteam/job.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = {}
    for name in ("cellwall.toml", "weakened.toml"):
        done = subprocess.run(
            [job, job.with_name(name), "--layer", "policy"],
            env={**os.environ, "PATH": path, "REPORTS": str(tmp_path / name)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        ended[name] = (done.returncode, done.stdout.splitlines()[-1])
        written = sorted(os.listdir(tmp_path / name))
        assert written == ["redteam.html", "redteam.sarif", "redteam.xml"], done.stderr
    report = tmp_path / "weakened.toml/redteam.html"
    assert ended == {
        "cellwall.toml": (0, "== passed: no attack got through"),
        "weakened.toml": (1, f"== failed: see {report}"),
    }


def test_the_cookbook_lists_every_example():
    page = (ROOT / "docs/guides/cookbook.md").read_text("utf-8")
    names = {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"}
    listed = set(re.findall(r"\(\.\./\.\./examples/([^/)]+)", page))
    assert listed == names
