"""Everyday commands on files: what is read and what is written."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, table, told, troubles

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
ls -la src
cat README.md
head -n 20 file.txt
tail -f log.txt
wc -l a b
sort -k2 -n file
sort -t, -k1,1 a.csv
uniq -c
cut -d: -f1 /etc/passwd
diff -u a b
cp -r src dst
mv a b
rm -rf build
mkdir -p a/b
touch x
ln -s a b
chmod +x run.sh
chmod 644 f
chmod -R u+rwX d
chmod 755 d
jq . f.json
jq -r '.a.b' f
jq --arg v 1 '.a=$v' f
df -h
du -sh .
which python
date +%Y
type git
base64 -d f
md5sum f
xxd f
dd if=a of=b bs=1M
tee out.txt
patch -p1 -i x.patch
tree -L 2
stat f
nproc
sleep 1
cat @u
rm @u
cp @u @u
ls @s
jq --arg x y '.a' f
csplit -f out- f 10
dos2unix @u
mv @u b
"""

FOUND = r"""
file -f.env -> read .env | read …
mktemp --tmpdir=../.. x.XXX -> write ../.. | write x.XXX
mktemp -p /x -> write /x
jq -n 'import "secrets/key" as $x; $x' -> danger import "secrets/key" as $x; $x
jq 'include "a"; .' -> danger include "a"; .
jq .a f -> read f
sort --compress-program=x f -> open x | read f
sort --compress-pr x f -> open x | read f
split --filter='rm $FILE' f -> read f | script rm $FILE
chmod 4755 f -> danger | write f
chmod u+s f -> danger | write f
chmod +s f -> danger | write f
chmod 06755 f -> danger | write f
chmod g=xs f -> danger g=xs | write f
dd if=/dev/zero of=/dev/sda -> read /dev/zero | write /dev/sda
ldd ./x -> danger ./x
rename 's/a/b/' f -> danger s/a/b/ | read f | write f
rename -n 's/a/b/' f -> danger s/a/b/ | read f | write f
prename 'system("x")' f g -> danger system("x") | read f | read g | write f | write g
rename @u f -> danger | read f | write f
install -m 4755 a b -> danger | read a | write b
yq 'load("/etc/x")' f -> danger load("/etc/x") | read f
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


PATHS = r"""
cat a b -> read a | read b
head -n 5 a -> read a
grep -rn x src a -> read a | read src
grep -e x -f pats a -> read a | read pats
rg -e x src -> read src
sort -o out a -> read a | write out
uniq a b -> read a | write b
diff a b -> read a | read b
cp a b c -> read a | read b | write c
cp -t d a -> read a | write d
mv a b -> read a | write a | write b
mv a b c -> read a | read b | write a | write b | write c
mv -t d a -> read a | write a | write d
mv @u b -> read … | write b | write …
ln -s /etc/x y -> read /etc/x | write y
rm -rf a b -> write a | write b
mkdir -p a -> write a
touch -r a b -> read a | write b
tee -a a b -> write a | write b
truncate -s 0 a -> write a
chmod 644 a -> write a
chown u:g a -> write a
install -m 755 a b -> read a | write b
dd if=a of=b bs=1 -> read a | write b
split -l 5 a p -> read a | write p
csplit f 10 '/x/' '{@g*}' -> read f
csplit --prefix=/etc/x -n 3 f 10 -> read f | write /etc/x
dos2unix a b -> read a | read b | write a | write b
unix2dos a -> read a | write a
patch -p1 -i d f -> read d | write f
jq -r .a f -> read f
jq -f p f -> read f | read p
jq --slurpfile a b . f -> read b | read f
xxd a b -> read a | write b
base64 -w0 a -> read a
curl -o a -T b -d @c -F x=@d -b e http://x -> read b | read c | read d | read e | write a
wget -O a -i b --post-file=c -> read b | read c | read … | write a
openssl enc -in a -out b -> read a | write b
scp a h:b -> read a
scp h:b a -> write a
rsync -a a/ b/ -> read a/ | write b/
vim a b -> read a | read b | write a | write b
vi -R a -> read a | write a
"""


@pytest.mark.parametrize(("command", "found"), table(PATHS))
def test_each_path_is_told_with_what_becomes_of_it(command: str, found: list[str]):
    assert sorted(told(command)) == found


def test_a_dash_is_no_file():
    assert told("cat - a") == ["read a"]
    assert told("tee -") == []


@pytest.mark.parametrize(
    "command", ["cat @u", "rm -rf @s", "cp @u @u", "grep x @g*", "ls @s", "wc -l @g*"]
)
def test_a_command_without_risky_options_may_have_unknown_operands(command: str):
    assert troubles(command) == []


@pytest.mark.parametrize(
    "command",
    [
        "sort @s",
        "curl @u",
        "rsync @u h:",
        "find @u",
        "sed p @g*",
        "zip a.zip @g*",
        "tree @s",
        "csplit @u 1",
    ],
)
def test_a_command_with_risky_options_may_not(command: str):
    assert "danger" in told(command)
