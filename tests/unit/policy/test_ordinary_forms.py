"""Forms that people write every day are understood; the dangerous neighbour of each still is not
allowed."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from unit.policy.policies import CWD, bash, policy, verdict

pytestmark = pytest.mark.requirement("POL-12", "POL-14")

EVERYTHING = policy(allow=["Bash(*)", "Read(//**)", "Write(//**)"])
ASKING = Policy.of(
    parse_policy(
        '[permissions]\notherwise = "ask"\nallow = ["Bash(git diff *)", "Bash(wc *)", "Bash(cat *)"]\n'
        'deny = ["Read(*.pem)"]\n',
        file="p.toml",
        name="p.toml",
        layer=Layer.PROJECT,
        folder=CWD,
    ).rules
)
CLOSED = policy(allow=["Bash(git diff *)", "Bash(git merge-base *)", "Bash(git rev-parse *)"])

ALLOWED = [
    # A denial speaks of the sub-command that is written out.
    ("docker rm -f $(docker ps -aq)", "docker $(cat x) --privileged y"),
    ('X=1; rm -rf "$Y/build"', 'Y=$(cat x); rm -rf "$Y/.."'),
    # Numbers, hashes and new folders that commands print are no options.
    ("git diff $(git merge-base HEAD main) -- src", "git diff $(git rev-parse --output=x)"),
    ("make -j $(nproc)", "make -j $(cat x)"),
    ("echo $(( $(date +%s) / 60 ))", "echo $(( $(cat x) ))"),
    ("echo $(( $(wc -l < a) + 1 ))", "wc() { cat; }; echo $(( $(wc -l < a) ))"),
    ('T=$(mktemp -d); cp a "$T" && rm -rf "$T"', 'T=$(mktemp -d -p /); rm -rf "$T"'),
    ("lsof -ti:8080 | xargs -r kill -9", "cat x | xargs kill -9"),
    # Processes.
    ("kill -9 -1234", "kill -9 -1"),
    ("kill $!", "kill $(echo -1)"),
    ("sleep 9 & kill $!", "kill -- -1"),
    # A pattern is no file; `rm` without -r takes no folders.
    ("cat a | grep -v '//'", "grep x /"),
    ("rm /tmp/*.log", "rm -rf /tmp/systemd-private-1-x"),
    # sed: brackets hide the delimiter.
    ("sed -n '/[^/]*x/p' a", "sed -n '/[^/]*x/e id' a; sed 's/[/]/x/e' a"),
    ("sed -i .bak 's/a/b/' a", "sed -i .bak 's/a/b/e' a"),
    ("sed -e '1i\\\nhead' a", "ec\\\nho a"),
    # Text that goes into an interpreter is read.
    ("echo 'print(1)' | python3", """echo 'import os; os.system("rm -rf /")' | python3"""),
    ("printf 'ls\\n' | sh", "printf 'rm -rf /\\n' | sh"),
    ("cat <<'E' | sh\nls\nE", "cat <<'E' | sh\nrm -rf /\nE"),
    ("echo $'\\033[0m'", "cat $'\\x{2e}env'"),
    ("unset NODE_OPTIONS; npm test", "NODE_OPTIONS=--require=./x.js npm test"),
    ("CGO_ENABLED=0 go build", "CGO_CFLAGS=-fplugin=x go build"),
]


@pytest.mark.parametrize(("harmless", "neighbour"), ALLOWED)
def test_an_ordinary_form_is_understood_and_its_neighbour_is_not_allowed(harmless, neighbour):
    assert (harmless, verdict(EVERYTHING, harmless)) == (harmless, "allow")
    assert verdict(EVERYTHING, neighbour) != "allow"


def test_an_output_that_may_be_an_option_is_allowed_by_no_narrow_rule():
    assert verdict(CLOSED, "git diff $(git merge-base HEAD main) -- src") == "allow"
    assert verdict(CLOSED, "git diff $(git rev-parse --output=x)") == "deny"
    assert verdict(CLOSED, "git diff $(git rev-parse --abbrev-ref HEAD)") == "deny"


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("for f in *.py; do wc -l $f; done", "ask"),
        ("git diff $X", "ask"),
        ("cat a.pem", "deny"),
        ("X=a.pem; eval 'cat $X'", "deny"),
        ("rm -rf /", "deny"),
        ('bash -c "$X"', "deny"),
    ],
)
def test_what_only_a_person_can_know_is_asked_where_the_policy_asks(command, asked):
    assert verdict(ASKING, command) == asked


def test_a_denial_that_an_unknown_word_could_bring_about_says_so():
    found = bash(EVERYTHING, 'X=$(cat f); rm -rf "$X"')
    assert found.verdict is Verdict.DENY
    assert found.reason.startswith("a word that is known only at run time could make this")
    assert bash(EVERYTHING, "rm -rf /").reason == "deletes the whole file system"


@pytest.mark.parametrize(
    "command",
    [
        "{ read a; python3; } <<'E'\n'''\nimport os; os.system('rm -rf /')\n#'''\nE",
        "while read a; do python3; done <<'E'\nx\nprint(1)\nE",
        "(read a; timeout 5 bash) <<'E'\nx\nls\nE",
    ],
)
def test_commands_that_share_a_here_document_get_no_known_code(command):
    assert verdict(EVERYTHING, command) == "deny"
    assert verdict(EVERYTHING, "cd src && python3 - <<'E'\nprint(1)\nE") == "allow"


def test_wildcards_in_the_project_are_the_files_that_they_find(tmp_path):
    (tmp_path / "certs").mkdir()
    (tmp_path / "certs/a.pem").touch()
    (tmp_path / "a.json").touch()
    made = policy(allow=["Bash(cat *)", "Bash(cp *)", "Write(./**)"], deny=["Read(*.pem)"])

    def found(command: str) -> str:
        call = {"tool": "Bash", "input": {"command": command}}
        return made.check(call, cwd=str(tmp_path), home="/home/ann").verdict.word

    assert [found("cat *"), found("cat *.json"), found("cat dist/*")] == ["allow"] * 3
    (tmp_path / "link").symlink_to("certs/a.pem")
    assert found("cat l*") == "deny"
    assert [found("cat certs/*"), found("cat */*.p*"), found("cp x b.pem; cat *")] == ["deny"] * 3


def test_a_search_by_the_name_of_files_is_no_search_for_secrets():
    made = policy(allow=["Read(./**)"], deny=["Read(**/secrets/**)", "Read(.env)"])

    def grep(glob: str) -> str:
        call = {"tool": "Grep", "input": {"pattern": "x", "glob": glob}}
        return made.check(call, cwd=CWD, home="/home/ann").verdict.word

    assert [grep("*.py"), grep("**/*.ts"), grep("src/**/*.{js,ts}")] == ["allow"] * 3
    assert [grep(".env"), grep("**/.env"), grep("secrets/*"), grep("{*.py,.env}")] == ["deny"] * 4
