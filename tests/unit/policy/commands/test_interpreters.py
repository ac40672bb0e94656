"""Interpreters: inline code is found, and what they load or read as code."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
crystal spec
R CMD check x
Rscript x.R
python script.py
python -m pytest -q tests
python -m pytest -p no:cacheprovider
python -m venv .venv
python -m json.tool f.json
python -m http
python --version
python3 -V
python -m pip install -r requirements.txt
python -m pip list
python manage.py migrate
python -W ignore x.py
python -u -X dev x.py
python -m mypkg.cli --x
node index.js
node --version
node --test
node dist/x.js --port 3
deno run main.ts
deno fmt
bun install
bun test
bun run build
java -jar x.jar
java -cp a:b Main
perl -v
php -v
php artisan migrate
ruby x.rb
python manage.py runserver
python -m cProfile -s cumtime x.py
perl -F, -lane 'print $F[0]' f
perl -Ilib t/x.t
"""

FOUND = r"""
R CMD rm x -> open rm
lua -i x.lua -> read x.lua | stdin lua
python -i x.py -> read x.py | stdin python
ipython -c '!rm x' -> ipython -c refused
crystal eval 'system("x")' -> code eval refused
java -Xlog:gc:/x A -> write /x | read A
java -Xrunx A -> danger -Xrunx | read A
python3 //dev/stdin -> danger
python3 /./proc/self/fd/0 -> danger
python3 ../../../proc/self/fd/0 -> danger
python3 /tmp/../dev/stdin -> danger
node //dev/stdin -> danger
python -m json.tool a b -> read a | write b
python -m http.server --directory /x -> danger --directory | danger -m
python -m zipfile -e x.zip ../.. -> read ../.. | read x.zip | write ../.. | write x.zip
python -m cProfile -o ../x y.py -> read y.py | write ../x
python -m venv --without-pip ../../x -> write ../../x
python -m poplib h -> danger -m
python -m wsgiref.simple_server -> danger -m
python -c 'import os; os.system("x")' -> python -c refused
python3.11 -c 'exec("x")' -> python -c refused
python -Ic 'import os; os.system("x")' -> python -Ic refused
python -m timeit x -> danger -m | python timeit refused
python -m http.server -> danger -m
python -m pdb x -> danger -m
python - -> stdin python
python -> stdin python
python /dev/stdin -> stdin python
python @u -> danger | danger | danger
python -m pip install --index-url http://x y -> danger --index-url
perl -e 'system("x")' -> perl -e refused
perl -ne 'system("x")' f -> perl -ne refused | read f
perl -lne '`x`' -> perl -lne refused
perl -pe 's/x/y/e' f -> perl -pe refused | read f
perl -ne 'print' 'rm x|' -> danger rm x| | perl -ne harmless
perl -MCPAN -e 1 -> danger -M | perl -e harmless
perl '-Mx;system(1)' -e1 -> danger -M | perl -e harmless
perl -> stdin perl
ruby -e 'system("x")' -> ruby -e refused
ruby -r./x -e 1 -> danger -r | ruby -e harmless
ruby -> stdin ruby
node -e 'require("child_process").execSync("x")' -> node -e refused
node -p 'require("child_process").execSync("x")' -> node -p refused
node --eval='require("child_process")' -> node --eval refused
node -r /x f.js -> danger -r | read f.js
node --require=/x f.js -> danger --require | read f.js
node --import /x f.js -> danger --import | read f.js
node --inspect=0.0.0.0 x.js -> danger --inspect | read x.js
node -> stdin node
deno eval 'x' -> node eval harmless
deno run https://x -> danger https://x
bun -e 'eval(1)' -> node -e refused
bun x sh -c rm -> inner sh -c rm
php -r 'system("x");' -> php -r refused
php -S 0.0.0.0:80 -> danger -S | stdin php
php -d extension=/x.so y.php -> danger -d | read y.php
lua -e 'os.execute("x")' -> lua -e refused
Rscript -e 'system("x")' -> r -e refused
julia -e 'x' -> julia -e refused
groovy -e 'x' -> code -e refused
osascript -e 'x' -> applescript -e refused
tclsh -> stdin tcl
expect -c 'spawn sh' -> tcl -c refused
octave --eval x -> code --eval refused
ghc -e 'x' -> haskell -e refused
erl -eval 'x' -> code -eval refused
elixir -e x -> code -e refused
java -javaagent:x y -> danger -javaagent:x | read y
java -XX:OnError=rm x -> danger -XX:OnError=rm | read x
java @f -> danger @f | read f | read …
perl -F'/x/);system("id");(' -ane 1 -> danger -F | perl -ane harmless
perl -i'/etc/*' -pe 1 f -> danger -i | perl -pe harmless | read f | write f
ruby -i/etc/* -pe 1 f -> danger -i | read f | ruby -pe harmless | write f
perl -i -pe 1 'rm x|' -> danger rm x| | perl -pe harmless
perl -I/tmp -MFoo -e 1 -> danger -I | danger -M | perl -e harmless
python manage.py shell -c 'import os' -> danger shell | read manage.py
python -m cProfile -m timeit 'x' -> danger -m
python -m coverage run -m timeit x -> danger -m | danger -m
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize("name", ["python", "python3", "python3.11", "/usr/bin/python3", "pypy3"])
def test_a_version_or_a_path_does_not_change_what_a_program_is(name: str):
    assert told(f"{name} -c 'import os; os.system(1)'") == ["python -c refused"]


def test_the_option_is_told_as_it_stands():
    assert told("python -Ic 'eval(1)'") == ["python -Ic refused"]
    assert told("python -c'eval(1)'") == ["python -c refused"]
    assert told("perl -lane 'exec 1'") == ["perl -lane refused"]
    assert told("node --eval='eval(1)'") == ["node --eval refused"]
    assert told("deno eval 'eval(1)'") == ["node eval refused"]


def test_words_behind_the_code_are_its_own():
    assert told("python -c 'print(1)' -c 'eval(1)'") == ["python -c harmless"]
    assert told("python x.py -c 'eval(1)'") == ["read x.py"]


def test_files_that_inline_code_reads_are_told():
    assert told("python -c 'print(open(\"/etc/x\").read())'") == [
        "python -c harmless",
        "read /etc/x",
    ]
    assert told('node -p \'require("fs").readFileSync("/etc/x")\'') == [
        "node -p harmless",
        "read /etc/x",
    ]


def test_a_module_that_is_a_program_is_opened_like_it():
    assert told("python -m pip install -r r.txt -i http://x y") == ["danger -i", "read r.txt"]
    assert told("python -m pytest --junitxml=o.xml") == ["write o.xml"]


def test_perl_opens_its_operands_like_commands():
    assert "danger rm x |" in told("perl -ne print 'rm x |'")
    assert "danger" in " ".join(told("perl -ne print @u"))
    assert told("perl -ne print a b") == ["perl -ne harmless", "read a", "read b"]


def test_edits_in_place_are_reads_and_writes():
    assert told("perl -pi -e 's/a/b/' f") == ["perl -e harmless", "read f", "write f"]
    assert told("ruby -i.bak -pe '1' f") == ["ruby -pe harmless", "read f", "write f"]
