"""What is denied stays so inside of texts that a program runs in a language of its own."""

from __future__ import annotations

import pytest

from unit.policy.policies import policy, verdict

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYTHING = policy(["Bash(*)", "Read(//**)", "Write(//**)"])
PAYLOADS = ("rm -rf /", "cat ~/.ssh/id_rsa")
CARRIERS = """
ed x <<< '!{0}'
ed x <<< ',!{0}'
ed x <<< 'w !{0}'
printf '!{0}\\n' | ed x
echo '!{0}' > c; ed x < c
ex -s x <<< '%!{0}'
vim -es x <<< ':!{0}'
vim -c 'call system("{0}")'
vim -c 'silent exe "!{0}"'
vim -c 'terminal {0}'
vim -c '%!{0}' x
nvim -c 'lua os.execute("{0}")'
echo '!{0}' > s.vim; vim -S s.vim
less x <<< '!{0}'
psql <<< '\\! {0}'
psql <<< 'select 1; \\! {0}'
psql -c "copy t from program '{0}'"
psql -c '\\o |{0}'
echo '\\! {0}' > q.sql; psql -f q.sql
mysql -e 'system {0}'
mysql <<< 'select 1; \\! {0}'
sqlite3 x ".import '|{0}' t"
sqlite3 x '.once |{0}'
sqlite3 x <<< '.shell {0}'
duckdb -c '.system {0}'
gdb x <<< 'shell {0}'
gdb -ex 'pipe info files | {0}'
echo 'shell {0}' > x.gdb; gdb -x x.gdb
lldb <<< 'platform shell {0}'
dc <<< '!{0}'
gnuplot <<< '!{0}'
ghci <<< ':!{0}'
ftp host <<< '!{0}'
telnet host <<< '!{0}'
sftp host <<< '!{0}'
smbclient //h/x -c '!{0}'
mail x <<< '~!{0}'
ipython -c '!{0}'
pwsh -Command '{0}'
xonsh -c '{0}'
socat - 'shell:{0}'
tmux set -g default-command '{0}'
tmux start \\; new -d '{0}'
fzf --bind 'start:execute({0})'
gs -c '(%pipe%{0}) (w) file'
pdflatex '\\immediate\\write18{{{0}}}'
rpm --eval '%({0})'
apt-get -o APT::Update::Pre-Invoke::='{0}' update
hg --config hooks.pre-status='{0}' status
ansible all -m shell -a '{0}'
npm config set script-shell '{0}'
go env -w CC='{0}'
cargo build --config 'build.rustc-wrapper="{0}"'
make 'X=$(shell {0})'
frob --exec '{0}'
frob --exec='cd / && {0}'
frob --on-exit '{0}; true'
frob -- {0}
frob a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k {0}
frob <<< 'system("{0}")'
xterm -e {0}
cmake -E env {0}
""".strip().splitlines()


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_rule_for_everything_does_not_cover_what_is_denied_inside(carrier: str, payload: str):
    assert verdict(EVERYTHING, carrier.format(payload)) != "allow"


@pytest.mark.parametrize(
    "command",
    [
        "ed x <<< '!r\"\"m -rf /'",
        "ed x <<< '!$(echo rm) -rf /'",
        "psql <<< 'select 1; \\! r\"\"m -rf /'",
        "frob --exec \"r''m -rf /\"",
        "frob --hook 'cd / && rm -rf *'",
        "FROB='rm -rf /' frob",
        "frob --exec 'curl http://169.254.169.254/'",
        "frob --exec reboot",
        "frob --exec=/sbin/reboot",
        "vim -c '!reboot'",
        "psql -c \"copy t from program 'reboot'\"",
        "gnuplot -e 'system \"reboot\"'",
        "socat - EXEC:reboot",
        "vim -c '!sudo id'",
        'awk \'BEGIN { system("r" "m -rf /") }\'',
        'ruby -e \'system("r" "m -rf /")\'',
    ],
)
def test_quotes_places_and_prefixes_do_not_hide_it(command: str):
    assert verdict(EVERYTHING, command) != "allow"


HARMLESS = """
git commit -m 'docs: never run rm -rf /'
grep -rn 'rm -rf /' .
echo 'rm -rf / is bad'
gh pr create --title x --body 'takes rm -rf / out of the docs'
psql -c "select * from t where a != 'b'"
psql <<< "select * from t where a != 'b'"
sqlite3 x.db '.tables'
mysql -e 'show tables'
vim -c 'set nu' x
gdb -batch -ex bt ./x core
frob --exec 'echo hi'
frob --exec "$MY_TOOL"
find . -name '*.t1' -exec rename 's/t1$/t2/' {} +
frob build "$(git rev-parse HEAD)"
frob --message 'kill -9 the process'
frob <<< 'a line of text; the shell of a nut'
mail -s hi a@b.c <<< 'Hello, the system is up!'
ed x.txt <<< '1d'
awk 'BEGIN { print "a" "b" }'
FOO='a b c' frob
getent passwd root
MODE=batch frob
frob --mode batch
frob --mode=batch image:at
psql -c "insert into jobs values ('batch', 'at')"
psql <<< "select * from jobs where mode = 'batch'"
""".strip().splitlines()


@pytest.mark.parametrize("command", HARMLESS)
def test_ordinary_uses_stay_allowed(command: str):
    assert verdict(EVERYTHING, command) == "allow"


def test_a_rule_that_spells_the_option_out_does_not_cover_a_denial_either():
    spelled = policy(["Bash(vim -c *)", "Read(./**)", "Edit(./**)"])
    assert verdict(spelled, "vim -c 'call system(\"ls\")' x") == "allow"
    assert verdict(spelled, "vim -c 'call system(\"rm -rf /\")' x") == "deny"


def test_a_text_that_is_too_long_to_be_looked_at_is_refused():
    assert verdict(EVERYTHING, f"ed x <<< '{'a ' * 40_000}'") == "deny"
