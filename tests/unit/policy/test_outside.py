"""What is asked about where a command runs outside, whatever a project or a user allows."""

from __future__ import annotations

from functools import cache

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.outside import outside_rules
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source

pytestmark = pytest.mark.requirement("POL-4", "FS-8")

CWD, HOME = "/home/me/project", "/home/me"


@cache
def policy(*texts: str, layer: Layer = Layer.USER) -> Policy:
    source = Source("p.toml", 1, folder=CWD)
    return Policy.of(
        [parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=layer) for text in texts]
    )


def verdict(rules: Policy, command: str, *, outside: bool = True) -> str:
    call = ToolCall("Bash", {"command": command}, CWD, HOME)
    return rules.check(call, outside=outside).verdict.word


ASKED = [
    *("ps", "ps aux", "/bin/ps -ef", "top -b -n1", "pgrep -f x", "pstree"),
    *("env", "env A=b", "env -0", "env -u HOME", "/usr/bin/env", "printenv", "printenv HOME"),
    *("set", "export", "export -p", "declare -p", "declare -p HOME", "typeset -p", "readonly -p"),
    *("kill 1", "kill -9 1234", "pkill -f node", "killall node", "kill -l; kill 5"),
    *("curl https://example.com", "wget example.com", "nc example.com 80", "ncat example.com 80"),
    *("socat - TCP:example.com:80", "telnet example.com", "ftp example.com", "xh example.com"),
    *("ssh example.com", "ssh example.com ls", "scp a example.com:", "sftp example.com"),
    *("rsync -a a/ example.com:b", "rsync -a u@example.com:a b", "rsync rsync://example.com/a b"),
    *("dig x.example.com", "nslookup x.example.com", "openssl s_client -connect example.com:443"),
    *("python3 -c 'print(1)'", "python -Ic 'print(1)'", "python3.11 -c 'print(1)'"),
    *("python3 - <<'E'\nprint(1)\nE", "python3 <<'E'\nprint(1)\nE", "echo 'print(1)' | python3"),
    *("node -e 1", "node --eval 1", "node -p 1", "perl -e 'print 1'", "ruby -e 'puts 1'"),
    *("php -r 'echo 1;'",),
    *("jq -n env", "jq -n '$ENV.A'", "yq -n 'strenv(A)'", "awk 'BEGIN{for(k in ENVIRON)print k}'"),
    *("pip install x", "python3 -m pip install x", "uv add x", "npm i x", "npx x", "uvx x"),
    *("uv run --with x pytest", "uv run --with=x y", "uv run -w x y"),
    *("tar xf a.tar", "tar -xzf a.tgz", "tar zxvf a.tgz", "tar --extract -f a.tar", "unzip a.zip"),
    *("7z x a.7z", "cpio -i < a", "patch -p1 < a.diff", "git apply a.diff", "git am a.patch"),
    # wherever they stand
    *("ls && ps", "echo $(ps)", "timeout 5 curl example.com", "bash -c 'ps aux'", "(env)"),
    *("nice printenv", "find . -name x -exec curl example.com ';'", "A=1 ps", "time ps"),
]
FREE = [
    *("tar tf a.tar", "tar -czf a.tgz src", "tar cf a.tar index", "unzip -l a.zip", "7z l a.7z"),
    *("patch --dry-run -p1 < a.diff", "git status", "git add apply.py"),
    *("ls", "env A=1 ls", "env -i ls", "set -e; ls", "set -euo pipefail; ls", "export A=1; ls"),
    *(
        "declare n=1; ls",
        "kill -l",
        "rsync -a a/ b/",
        "python3 app.py",
        "node app.js",
        "echo ps",
    ),
    *("grep curl README.md", "openssl sha256 file", "awk '{print $1}' file", "sed -n 1p file"),
    *("jq .env a.json", "jq '.environment' a.json", "yq .a a.yml"),
    *("pip list", "uv run pytest", "npm run build"),
    *("git status", "npm test", "pytest -q", "python3 -m pytest"),
]


@pytest.mark.parametrize("command", ASKED)
def test_asked_outside_whatever_is_allowed(command):
    everything = policy("Bash", "Read", "Write")
    assert verdict(everything, command, outside=False) in {"allow", "deny"}
    assert verdict(everything, command) in {"ask", "deny"}
    if verdict(everything, command, outside=False) == "allow":
        assert verdict(everything, command) == "ask"


@pytest.mark.parametrize("command", FREE)
def test_ordinary_work_is_not_asked_about(command):
    everything = policy("Bash", "Read", "Write")
    assert verdict(everything, command) == "allow"


@pytest.mark.requirement("POL-7")
@pytest.mark.parametrize("layer", [Layer.USER, Layer.PROJECT, Layer.SESSION])
@pytest.mark.parametrize("rule", ["Bash", "Bash(ps *)", "Bash(ps aux)"])
def test_no_allow_of_a_user_or_a_project_takes_the_question_back(layer, rule):
    assert verdict(policy(rule, layer=layer), "ps aux", outside=False) == "allow"
    assert verdict(policy(rule, layer=layer), "ps aux") == "ask"


def test_the_administrator_takes_it_back_by_a_rule_that_names_the_program():
    assert verdict(policy("Bash(ps *)", layer=Layer.ADMINISTRATOR), "ps aux") == "allow"
    assert verdict(policy("Bash", layer=Layer.ADMINISTRATOR), "ps aux") == "ask"


def test_a_denial_is_no_question():
    assert verdict(policy("Bash(ls *)"), "ps aux") == "deny"


@pytest.mark.slow
def test_every_program_of_the_table_is_asked_about():
    everything = policy("Bash", "Read", "Write")
    for program, rule in outside_rules().programs.items():
        assert rule.why
        given = {"rsync": "h:a", "rclone": "r:a", "openssl": "s_client"}
        given |= dict.fromkeys(("jq", "gojq", "jaq", "yq"), "env")
        given |= dict.fromkeys(("tar", "gtar", "bsdtar"), "xf") | {"git": "apply"}
        given |= dict.fromkeys(("awk", "gawk", "mawk", "nawk"), "'BEGIN{print ENVIRON[1]}'")
        argument = given.get(program, "-p 1" if "attaches" in rule.why else "x")
        assert (program, verdict(everything, f"{program} {argument} y")) != (program, "allow")


def test_the_reason_says_why_and_where():
    call = ToolCall("Bash", {"command": "ps aux"}, CWD, HOME)
    decision = policy("Bash").check(call, outside=True)
    assert (decision.rule, decision.source) == ("Bash(ps *)", "built-in: outside")
    assert "command lines of all processes" in decision.reason
