"""Inline code is a command: what it starts is judged, whichever rule allows the interpreter."""

from __future__ import annotations

import pytest

from unit.policy.policies import bash, policy, verdict

EVERYTHING = policy(allow=["Bash(*)", "Read(./**)", "Edit(./**)"], deny=["Bash(curl *)"])
ASKING = policy(ask=["Bash(*)"], deny=["Bash(curl *)"])
SPELLED = policy(allow=["Bash(python3 -c *)"], deny=["Bash(curl *)", "Read(.env)"])
NARROW = policy(
    allow=[
        "Bash(python3 *)",
        "Bash(ls *)",
        "Bash(cat *)",
        "Bash(awk *)",
        "Bash(sort *)",
        "Bash(npm *)",
        "Bash(echo *)",
        "Read(./**)",
        "Edit(./**)",
    ]
)


def python(code: str) -> str:
    return f"python3 -c '{code}'"


@pytest.mark.requirement("POL-2", "POL-4")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(1)", "allow"),
        ('import os; os.system("ls")', "allow"),
        ('import os; os.system("curl x")', "deny"),
        ('import subprocess; subprocess.run(["curl", "x"])', "deny"),
        ("import os, sys; os.system(sys.argv[1])", "deny"),
        ("from app import main; main()", "allow"),
        ('import subprocess; subprocess.run(["rm", "-rf", "."], cwd="/")', "deny"),
        ('import os; os.chdir("/"); os.system("rm -rf .")', "deny"),
        ('import subprocess; subprocess.run(["ls"], cwd="src")', "allow"),
        ('open("a.txt", "w").write("x")', "allow"),
        ('open("/etc/passwd", "w").write("x")', "deny"),
    ],
)
def test_a_rule_for_everything_does_not_cover_what_code_starts(code: str, expected: str):
    assert verdict(EVERYTHING, python(code)) == expected


@pytest.mark.requirement("POL-2", "POL-4")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('import os; os.system("ls")', "allow"),
        ("import os, sys; os.system(sys.argv[1])", "allow"),
        ('import os; os.system("curl x")', "deny"),
        ('import os; os.system("bash -c \\"curl x\\"")', "deny"),
        ('import os; os.system("ls > out")', "allow"),
        ('open(".env").read()', "deny"),
        ('import os; os.system("cat .env")', "deny"),
    ],
)
def test_a_rule_that_spells_out_the_code_means_it_and_denials_hold(code: str, expected: str):
    assert verdict(SPELLED, python(code)) == expected


def test_a_person_who_is_asked_about_everything_is_asked_about_unknown_code():
    assert verdict(ASKING, python("import os, sys; os.system(sys.argv[1])")) == "ask"
    assert verdict(ASKING, python('import os; os.system("curl x")')) == "deny"


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (python('import os; os.system("ls")'), "deny"),
        ("awk '{ print | \"sort\" }' a", "allow"),
        ("awk '{ print | \"id\" }' a", "deny"),
        ("echo 'print(1)' > x.py; python3 x.py", "allow"),
        ("echo 'import os; os.system(\"ls\")' > x.py; python3 x.py", "allow"),
        ("echo 'import os; os.system(\"id\")' > x.py; python3 x.py", "deny"),
        ("echo 'import os; os.system(x)' > x.py; python3 x.py", "deny"),
        ("cat a > x.py; python3 x.py", "deny"),
        ("cat a > x.py; python3 y.py", "allow"),
        ("echo '{}' > package.json; npm test", "deny"),
        ("echo '{}' > other.json; npm test", "allow"),
        ("python3 - <<< 'print(1)'", "allow"),
        ("python3 - <<< 'import os; os.system(\"ls\")'", "deny"),
    ],
)
def test_code_under_a_rule_for_the_interpreter(command: str, expected: str):
    assert verdict(NARROW, command) == expected


def test_the_reason_says_what_is_unknown_and_what_to_write():
    reason = bash(EVERYTHING, python("import os, sys; os.system(sys.argv[1])")).reason
    assert "put together while it runs" in reason
    assert "'-c'" in reason
