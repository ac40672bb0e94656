"""Each part of a command is judged by itself, and the strictest verdict is the whole's."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.parsing.shell import parser
from cellwall.parsing.shell.reader import read_shell
from unit.policy.policies import CWD, HOME, bash, policy, verdict

ORDINARY = policy(
    allow=[
        *("Bash(git *)", "Bash(ls *)", "Bash(cat *)", "Bash(find *)", "Bash(grep *)", "Bash(wc *)"),
        *("Bash(bash *)", "Bash(python *)", "Bash(echo *)", "Read(./**)", "Write(./**)"),
    ],
    ask=["Bash(git push *)"],
    deny=["Read(.env)", "Bash(rm -rf *)"],
)


@pytest.mark.requirement("POL-1", "POL-2")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git status", "allow"),
        ("git push", "ask"),
        ("ls && git push", "ask"),
        ("git push; curl x", "deny"),
        ("ls; curl x", "deny"),
        ("ls\ncurl x", "deny"),
        ("ls $(curl x)", "deny"),
        ("ls <(curl x)", "deny"),
        ('echo "`curl x`"', "deny"),
        ("cat a > b", "allow"),
        ("cat a > /tmp/b", "deny"),
        ("cat a > $X", "deny"),
        ("cat a 2>/dev/null", "allow"),
        ("cat < a", "allow"),
        ("cat < .env", "deny"),
        ("cat .env", "deny"),
        ("cat ./x/../.env", "deny"),
        ("cat .e*", "deny"),
        ("cat *", "allow"),
        ("cd src && ls", "allow"),
        ("cd src", "deny"),
        ("FOO=1 ls", "allow"),
        ("FOO=1", "deny"),
        ("PATH=x ls", "deny"),
        ("export PATH=x; ls", "deny"),
        ("$X", "deny"),
        ("timeout 5 ls", "allow"),
        ("timeout 5 curl x", "deny"),
        ("env -u A ls", "allow"),
        ("bash -c 'ls; cat x'", "allow"),
        ("bash -c 'ls; curl x'", "deny"),
        ('bash -c "ls $X"', "deny"),
        ("bash <<'E'\nls\nE", "allow"),
        ("bash <<'E'\ncurl x\nE", "deny"),
        ("bash <<< 'curl x'", "deny"),
        ("echo ls | bash", "allow"),
        ("echo curl x | bash", "deny"),
        ("echo 'ls; curl x' | bash", "deny"),
        ("echo 'ls\\ncurl x' | bash", "deny"),
        ("echo ls | tee x | bash", "deny"),
        ("cat x | bash", "deny"),
        ("bash <(echo ls)", "deny"),
        ("bash", "deny"),
        ("find . -name x", "allow"),
        ("find . -exec cat {} +", "allow"),
        ("find . -exec rm {} +", "deny"),
        ("find . -delete", "deny"),
        ("git -c alias.x='!curl x' x", "deny"),
        ("find . -name '*.py' | xargs grep foo", "allow"),
        ("echo .env | xargs cat", "deny"),
        ("find . -name .env | xargs cat", "deny"),
        ("cat $(echo .env)", "deny"),
        ("bash -c 'cat $(echo .en; echo v)'", "deny"),
        ("bash <<'E'\ncat $(echo .en)\nE", "deny"),
        ('f=x.env; cat "${f#x}"', "deny"),
        ('a=(README.md .env); cat "${a[@]}"', "deny"),
        ("cat ~+/.env", "deny"),
        ("python -c 'print(open(\".env\").read())'", "deny"),
        ("IFS= read -r x < a; ls", "allow"),
        ("IFS=/ ls", "deny"),
        ('for f in $(git ls-files); do wc -l "$f"; done', "allow"),
        ("f() { ls; }; f", "allow"),
        ("f() { curl x; }; f", "deny"),
        ("git() { curl x; }; git status", "deny"),
        ("python -c 'print(1)'", "allow"),
        ("python -c 'import os; os.system(\"curl x\")'", "deny"),
        ("", "deny"),
        ("ls 'unfinished", "deny"),
    ],
)
def test_verdicts(command, expected):
    assert (command, verdict(ORDINARY, command)) == (command, expected)


@pytest.mark.requirement("POL-3")
def test_arguments_that_run_code_need_a_rule_that_spells_them_out():
    wide, meant = policy(["Bash(python *)"]), policy(["Bash(python -c *)"])
    evil = "python -c 'import os; os.system(\"id\")'"
    assert verdict(wide, evil) == "deny"
    assert verdict(meant, evil) == "allow"
    assert "spells out '-c'" in bash(wide, evil).reason


def test_a_rule_that_spells_out_wrapper_and_command_allows_both():
    both = policy(["Bash(npx tsc *)", "Bash(xargs sh *)", "Bash(timeout *)"])
    assert verdict(both, "npx tsc --noEmit") == "allow"
    assert verdict(both, "npx evil") == "deny"
    assert verdict(both, "timeout 5 ls") == "deny"
    assert verdict(both, "xargs sh -c 'rm x'") == "deny", "the shell is meant, not what it runs"


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(
    "wrapper",
    [
        *("env", "timeout 5", "nice", "xargs", "command", "/usr/bin/env", "/bin/timeout 5"),
        *("bash -c", "/bin/sh -c"),
    ],
)
def test_a_wrapper_needs_no_rule_only_under_its_own_name(wrapper):
    allowed = policy(["Bash(ls *)"])
    name = wrapper.rpartition("/")[2].partition(" ")[0]
    assert verdict(allowed, f"{wrapper} ls") == "allow"
    for other in (f"./{name}", f"/tmp/{name}", f"~/bin/{name}", f"{name}1", f"{name}-2.0"):
        assert verdict(allowed, f"{other}{wrapper.rpartition(name)[2]} ls") == "deny"


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(
    "command",
    [
        *("env -C / cat etc/shadow", "env --chdir=/etc cat shadow", "env -iC / cat etc/shadow"),
        *("env -C / -C etc cat shadow", "env -C / env -C etc cat shadow", "env -C../etc cat shadow"),
        *("env -S '-C / cat etc/shadow'", "make -C /etc -f shadow", "uv --directory / run cat etc/shadow"),
        *("pnpm -C / exec cat etc/shadow", "cd a; cd b; env -C / cat etc/shadow"),
        *("git -C /etc grep --no-index x shadow", "git -C ~ grep --no-index x", "diff -rN ~ /tmp"),
        *("bsdtar cf - ~", "rg . -g .env --hidden", "rg -g'.e*' .", "git credential-store get"),
    ],
)  # fmt: skip
def test_a_folder_given_by_an_option_and_a_whole_folder_are_no_way_past_a_denial(command):
    everything = policy(["Bash(*)"])
    assert verdict(everything, command) == "deny"
    for harmless in ("env -C sub cat a.txt", "make -C sub", "diff -r a b", "rg x -g '*.py'"):
        assert verdict(everything, harmless) == "allow"


@pytest.mark.requirement("POL-3")
def test_code_of_a_folder_elsewhere_needs_a_rule_that_spells_the_option_out():
    allowed = policy(["Bash(make *)", "Bash(npm test *)", "Bash(yarn *)", "Bash(xmllint *)"])
    for command in ("make -C sub", "npm test --prefix sub", "yarn --cwd sub test", "xmllint a.xml"):
        assert verdict(allowed, command) == "allow"
    for command in (
        *("make -C /tmp/x", "make -C../x", "make --directory=./../x", "npm test --prefix /tmp/x"),
        *("npm test -C ../x", "yarn --cwd ~/x test", "xmllint --noent a.xml"),
    ):
        assert verdict(allowed, command) == "deny"


@pytest.mark.requirement("POL-12")
@pytest.mark.parametrize(
    "command",
    [
        'cp a "$(git rev-parse --git-dir)/config"',
        'cp a "$(git rev-parse --git-path hooks)"/pre-commit',
        'cd "$(git rev-parse --git-common-dir)"; cp a config',
        "cd $(ls -d .git/h*); cp a pre-commit",
    ],
)
def test_a_person_is_asked_where_a_text_may_write_into_a_git_directory(command):
    everything = policy(["Bash(*)"])
    assert verdict(everything, command) == "ask"
    assert verdict(everything, 'cp a "$(git rev-parse --show-toplevel)/b"') == "allow"


@pytest.mark.requirement("POL-2")
def test_a_lone_input_redirection_starts_a_pager_in_zsh():
    reading = policy(["Bash(echo *)", "Bash(cat *)", "Read(./**)"])
    for command in ("< a", "for x in 1; do < a; done", "echo $(< a; < b)", "NULLCMD=id; > a"):
        assert verdict(reading, command) == "deny"
    for command in ("echo $(< a)", "cat < a", "x=1 < a"):
        assert verdict(reading, command) == "allow"


@pytest.mark.requirement("POL-5")
def test_a_decision_names_rule_place_and_reason_for_the_whole_and_each_part():
    decision = bash(ORDINARY, "ls && cat .env > x")
    assert (decision.verdict, decision.rule, decision.source) == (
        Verdict.DENY,
        "Read(//**/.env)",
        "built-in",
    )
    assert [(part.subject, part.verdict.word, part.rule) for part in decision.parts] == [
        ("ls", "allow", "Bash(ls *)"),
        ("redirection > x", "allow", "Write(./**)"),
        ("cat .env", "allow", "Bash(cat *)"),
        ("cat .env", "deny", "Read(//**/.env)"),
    ]
    assert all(part.reason for part in decision.parts)


@pytest.mark.requirement("POL-4")
def test_built_in_denials_hold_whatever_is_allowed():
    everything = policy(["Bash", "Read", "Write"])
    assert verdict(everything, "ls -la") == "allow"
    for command in ("sudo ls", "rm -rf /", "rm -fr ~", "cat ~/.ssh/id_rsa", "echo x > ~/.bashrc"):
        assert (command, verdict(everything, command)) == (command, "deny")


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize(
    "command",
    [
        *("cp -r evil/.claude .", "mv evil/.claude sub/", "ln -s a sub/.claude", "rm -rf .claude"),
        *("git mv .cellwall x", "mv .git/hooks x", "cp -r x/.vscode ."),
    ],
)
def test_what_steers_an_agent_is_not_put_or_taken_away_with_its_folder(command):
    free = policy(["Bash", "Read", "Write"])
    assert verdict(free, "cp -r evil/docs .") == "allow"
    assert verdict(free, command) == "deny"


def test_words_that_only_steer_the_shell_are_allowed_by_a_rule_of_their_own():
    assert verdict(policy(["Bash"]), "cd src; true") == "allow"
    assert verdict(policy(["Bash(cd *)"]), "cd src") == "allow"
    assert verdict(policy(["Bash(cd *)"]), "cd src; export A=1") == "deny"
    assert verdict(policy(["Bash(ls *)"]), "cd src") == "deny"


def test_a_search_of_a_folder_reads_all_that_is_in_it():
    secret = policy(["Bash", "Grep"], deny=["Read(./secret/**)"])
    assert verdict(secret, "grep KEY a.txt") == verdict(secret, "rg KEY src") == "allow"
    for command in ("grep -r KEY .", "grep -r KEY", "grep -nR KEY", "rg KEY"):
        assert (command, verdict(secret, command)) == (command, "deny")
    assert secret.check("Grep(.)", cwd=CWD, home=HOME).verdict is Verdict.DENY
    assert secret.check("Grep(src)", cwd=CWD, home=HOME).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "cat " + " ".join(f"*{number}" for number in range(100)),
        "ls " + "x " * 5000,
        "echo " + "$a" * 20_000,
        "echo $((" + "1+" * 3000 + "1))",
        "ls " + "> x " * 4000,
    ],
)
@pytest.mark.slow
@pytest.mark.sample(2)
def test_what_would_take_long_is_refused(command):
    assert verdict(ORDINARY, command) == "deny"


@pytest.mark.slow
def test_the_work_is_bounded():
    assert verdict(ORDINARY, "ls;" * 200) == "allow"
    assert verdict(ORDINARY, "ls;" * 5000) == "deny"
    assert verdict(ORDINARY, "ls " + "x" * 10_000) == "allow"
    assert verdict(ORDINARY, "timeout 1 " * 12 + "ls") == "deny"
    assert verdict(ORDINARY, "timeout 1 " * 3 + "ls") == "allow"


_PIECES = st.sampled_from(
    ["ls", "git status", "cat a", "cat .env", "rm -rf x", "curl x", "git push", "echo hi > b"]
)
_JOINS = st.sampled_from([" && ", "; ", " | ", " || ", "\n", " & "])


@st.composite
def _texts(draw) -> str:
    text = draw(_PIECES)
    for _ in range(draw(st.integers(0, 3))):
        text += draw(_JOINS) + draw(_PIECES)
    return draw(st.sampled_from(["{}", "( {} )", "if true; then {}; fi", "{{ {}; }}"])).format(text)


@pytest.mark.requirement("POL-1")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_texts(), st.sampled_from(["Bash(git *)", "Bash(ls)", "Read(a)", "Write(**)", "Bash"]))
def test_a_denial_that_is_added_never_loosens(text, added):
    before = bash(policy(["Bash", "Write(./**)"], deny=["Read(.env)"]), text)
    after = bash(policy(["Bash", "Write(./**)"], deny=["Read(.env)", added]), text)
    assert after.verdict >= before.verdict


@st.composite
def _quoted(draw, text: str) -> str:
    """The same words in another spelling."""
    said = ""
    for letter in text:
        form = draw(st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "$'\\x{:02x}'", "{}''"]))
        is_plain = letter in " \n"
        said += letter if is_plain else form.format(ord(letter) if "02x" in form else letter)
    return said


@pytest.mark.requirement("POL-2")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_quoted("rm -rf x"))
def test_no_quoting_of_a_denied_command_is_allowed(text):
    assert verdict(policy(["Bash"], deny=["Bash(rm -rf *)"]), text) == "deny"


@pytest.mark.requirement("POL-2")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_texts())
def test_a_text_that_is_printed_anew_reads_the_same(text):
    printed = subprocess.run(
        [parser._program(), "-ln=bash"], input=text, capture_output=True, text=True, check=True
    ).stdout

    def read(each: str):
        return [(c.words, c.files) for c in read_shell(each, directories=(CWD,), home=HOME)]

    assert read(printed) == read(text)
