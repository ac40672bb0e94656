"""Rules and people decide about packages, with real pip in a cell (PKG-2, POL-8)."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest

from cellwall.core.approvals import AnswerKind
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.runtime.approvals import CallbackApprover
from cellwall.runtime.wiring import open_app
from conftest import audit_records
from registries import serve_registries
from unit.runtime.questions_for_tests import said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("cold", reason="rules and people decide outside of the cell"),
]

PIP = "pip install --disable-pip-version-check --no-input -q --target /tmp/site "
# As a package manager asks for an index, without the seconds that pip takes.
LOOK_UP = """
python3 - <<EOF
import urllib.error, urllib.request
try:
    urllib.request.urlopen("https://pypi.org/simple/{}/")
except urllib.error.HTTPError as error:
    print(error.code)
EOF
"""
NOW = datetime.now(UTC)
EXCEPTION = f"""
[permissions]
deny = ["Install(pypi:quagga-*)"]

[[rule]]
verdict = "allow"
rule = "Install(pypi:zebra.atlas==2.*)"
lifts = ["age"]
until = {NOW.date() + timedelta(days=2)}
reason = "fixes our outage"

[[rule]]
verdict = "allow"
rule = "Install(pypi:okapi-notes)"
lifts = ["age"]
until = {NOW.date() - timedelta(days=2)}
"""


@pytest.fixture(scope="module")
def registries():
    # Not from `NOW`, which may be an hour ago on a slow host: the reasons name the age in hours.
    young = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    with serve_registries() as served:
        for version in ("1.0", "2.0", "3.0"):
            served.add_wheel("zebra-atlas", version, uploaded=young)
        served.add_wheel("okapi-notes", "1.0", uploaded=young)
        served.add_wheel("quagga-lines", "1.0")
        served.add_wheel("reqeusts", "1.0", {"reqeusts.py": "VERSION = 1\n"})
        served.add_wheel("nunpy", "1.0", {"nunpy.py": "VERSION = 1\n"})
        yield served


@pytest.fixture
def perform(tmp_path, state_home, registries):
    """Runs a script in a cell under a policy; a function answers the questions."""

    def run(script, *, policy="", answer=None, timeout_s=60.0):
        config = tmp_path / "config.toml"
        config.write_text(
            f'[packages]\nwithout_feed = "allow"\npypi_url = "{registries.base}"\n'
            f'pypi_file_urls = []\n[approvals]\ntimeout_s = {timeout_s}\nchannels = ["callback"]\n'
        )
        config.chmod(0o600)
        # The user's own policy file: named files would judge the command as well.
        own = tmp_path / "own" / "cellwall"
        own.mkdir(parents=True, exist_ok=True)
        (own / "policy.toml").write_text(policy)
        (own / "policy.toml").chmod(0o600)
        environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "own")}
        app = open_app(config=str(config), environ=environ)
        action = Action(
            principal=Principal("agent", "sdk"),
            operation=RunCommand(("sh", "-c", script)),
            registries=("pypi",),
            limits=app.limits,
        )
        ask = None if answer is None else CallbackApprover(answer)
        try:
            outcome = anyio.run(partial(app.runtime.perform, action, ask=ask))
        finally:
            app.close()
        refused = [each.message for each in outcome.findings if each.category == "packages"]
        return outcome, refused

    return run


def verdicts():
    return [
        record["body"]
        for record in audit_records()
        if record["body"].get("event") == "package-verdict"
    ]


@pytest.mark.requirement("PKG-2")
def test_an_exception_lifts_the_age_of_its_versions_until_its_day_and_is_recorded(perform):
    looked_up = "".join(LOOK_UP.format(name) for name in ("okapi-notes", "quagga-lines"))
    script = f"{PIP} zebra-atlas; ls /tmp/site; {PIP} zebra-atlas==3.0; {looked_up}"
    outcome, refused = perform(script, policy=EXCEPTION)
    assert "zebra_atlas-2.0.dist-info" in outcome.stdout, outcome
    assert "zebra_atlas-3.0" not in outcome.stdout
    assert outcome.stdout.count("404") == 2
    assert refused == [
        "zebra-atlas 3.0 is 3 hours old; 2.0 is allowed",
        "okapi-notes 1.0 is 3 hours old; versions older than 7 days are allowed",
        "the user rules deny this",
    ]
    used = {(each["package"], each["version"]): each for each in verdicts()}
    lifted = used["pypi:zebra-atlas", "2.0"]
    assert (lifted["verdict"], lifted["rule"], lifted["rule_reason"]) == (
        "allow",
        "Install(pypi:zebra-atlas==2.*)",
        "fixes our outage",
    )
    assert lifted["source"].endswith("policy.toml:7")
    assert lifted["answered"] == ["new-project", "too-young"]
    assert used["pypi:quagga-lines", None]["rule"] == "Install(pypi:quagga-*)"


@pytest.mark.requirement("PKG-2", "POL-8")
def test_a_person_is_asked_once_about_a_package_and_the_answer_holds_for_the_session(perform):
    asked = []

    def answer(question):
        asked.append(question)
        return said(AnswerKind.ONCE if "reqeusts" in question.text else AnswerKind.DENY)

    script = (
        f"{PIP} reqeusts; {PIP} --upgrade reqeusts; {PIP} nunpy; {PIP} nunpy; ls /tmp/site;"
        "env | grep -c TIMEOUT"
    )
    outcome, refused = perform(script, answer=answer)
    assert "reqeusts-1.0.dist-info" in outcome.stdout, outcome
    assert "nunpy" not in outcome.stdout
    assert [each.text for each in asked] == ["pypi:reqeusts", "pypi:nunpy"]
    shown = asked[0].shown
    assert "reqeusts is a misspelling of requests (rank 6)" in shown
    assert "risk 5 of 10: feed missing or old, resembles requests" in shown
    assert "Use instead: requests" in shown
    assert [each.rule for each in asked[0].proposals] == ["Install(pypi:reqeusts)"]
    assert all(each.endswith("; a person was asked and did not allow it") for each in refused)
    answers = [each["body"] for each in audit_records() if each["kind"] == "approval"]
    assert [(each["verdict"], each["by"]) for each in answers] == [
        ("allow", "me"),
        ("deny", "me"),
    ]
    approved = [each for each in verdicts() if each["verdict"] == "allow"]
    assert {each["approved_by"] for each in approved} == {"me"}


@pytest.mark.requirement("PKG-2", "POL-8")
def test_without_a_person_or_an_answer_in_time_the_package_is_refused(perform):
    outcome, refused = perform(f"{PIP} reqeusts; ls /tmp/site")
    assert "reqeusts" not in outcome.stdout
    assert refused == ["reqeusts is a misspelling of requests (rank 6)"]

    async def never(_):
        await anyio.sleep_forever()

    outcome, refused = perform(f"{PIP} reqeusts; ls /tmp/site", answer=never, timeout_s=1.0)
    assert "reqeusts" not in outcome.stdout
    assert len(refused) == 1
