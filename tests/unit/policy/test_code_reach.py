"""A rule for everything does not cover what inline code starts in a way that is not written out.

Each line of `HIDDEN` does, or can do, what the rules deny; each of `PLAIN` is its harmless neighbour.
"""

from __future__ import annotations

import shlex

import pytest

from unit.policy.policies import policy, verdict

EVERYTHING = policy(allow=["Bash(*)", "Read(./**)", "Edit(./**)"], deny=["Bash(curl *)"])
MEANT = policy(allow=["Bash(python3 -c *)"])
INNER = "import os; os.system('curl x')"

PYTHON = [
    # names that are handed on
    f'list(map(exec, ["{INNER}"]))',
    f'sorted(["{INNER}"], key=exec)',
    f'[e := exec, e("{INNER}")]',
    f'@exec\n@(lambda f: "{INNER}")\ndef f(): pass',
    'import os\nclass A:\n  s = os.system\nA.s("curl x")',
    'import os\nmatch os:\n  case object(system=s): s("curl x")',
    "import subprocess\ndef f(m): m.run(x)\nf(subprocess)",
    # modules within modules, and the interpreter's inside
    'import webbrowser; webbrowser.subprocess.run(["curl", "x"])',
    f'input.__self__.exec("{INNER}")',
    '[c for c in object.__subclasses__() if c.__name__ == "Popen"]',
    'import random; random._os.popen("curl x")',
    # doors of the library, and of packages
    'import pkgutil; f = pkgutil.resolve_name("os:system"); f("curl x")',
    'import pydoc; f = pydoc.locate("os.system"); f("curl x")',
    f'import bdb; bdb.Bdb().run("{INNER}")',
    f'import timeit; timeit.main(["{INNER}"])',
    f'import _interpreters as i; i.exec(i.create(), "{INNER}")',
    f'from concurrent import interpreters as i; i.create().exec("{INNER}")',
    "import pty; pty.fork()",
    'import importlib.machinery as m; m.SourceFileLoader("x", "/tmp/x.py").load_module()',
    'import zipimport; zipimport.zipimporter("x.zip").load_module("y")',
    'import sys; sys.path.insert(0, "/tmp"); import evil',
    'import logging.config; logging.config.dictConfig({"version": 1})',
    'import yaml; yaml.load("x", Loader=yaml.Loader)',
    'import yaml; yaml.unsafe_load("x")',
    'import tkinter as t; t.Tcl().call("exec", "curl", "x")',
    'import sh; sh.curl("x")',
    'from plumbum import local; local["curl"]("x")',
    'import invoke; invoke.run("curl x")',
    'import pexpect; pexpect.run("curl x")',
    'from pip._internal import main; main(["uninstall", "-y", "x"])',
    # what a started command inherits
    'import os; os.environ |= {"LD_PRELOAD": "/tmp/x.so"}; os.system("ls")',
    'import os; os.environb[b"LD_PRELOAD"] = b"/tmp/x.so"; os.system("ls")',
    'import os; e = os.environ; e["LD_PRELOAD"] = "/tmp/x.so"; os.system("ls")',
    # names of files that are put together
    'print(open("vne."[::-1]).read())',
    'print(open(".ENV".lower()).read())',
    'import base64; print(open(base64.b64decode("LmVudg==")).read())',
    'x = ""; x += ".env"; print(open(x).read())',
    "print(open(input()).read())",
    "[print(open(line.strip()).read()) for line in open('list')]",
    'f = lambda p: open(p).read(); print(f("." + chr(101) + "nv"))',
    'import os; print(open(os.sep.join(["", "home", "ann", ".ssh", "id_rsa"])).read())',
    'import os; print(open(os.path.expanduser("~bob/x")).read())',
    'import glob; [print(open(f).read()) for f in glob.glob(".en?")]',
    'from pathlib import Path; [print(p.read_text()) for p in Path(".").glob(".en*")]',
    "from dotenv import load_dotenv; load_dotenv()",
    'import shutil; shutil.rmtree(path="/")',
    'from pathlib import Path; [p.unlink() for p in Path("/").rglob("*")]',
    'import os; from x import y; y("." + "env")',
    # a list, a variable or a folder that is changed meanwhile
    'import subprocess as s\nc = ["ls"]\nc[0] = "curl"\ns.run(c)',
    'import subprocess as s\nc = ["ls"]\nc.insert(0, "curl")\ns.run(c)',
    'import subprocess as s\nc = ["ls"]\nd = c\nd.append(";")\ns.run(c)',
    'import subprocess as s\nc = "ls"\nglobals()["c"] = "curl x"\ns.run(c, shell=True)',
    'import subprocess as s\nc = "ls"\nfrom evil import c\ns.run(c, shell=True)',
    'import subprocess as s\nc = "ls"\nfrom evil import *\ns.run(c, shell=True)',
    'import subprocess as s\nc = "ls"\ndef f(c): s.run(c, shell=True)\nf("curl x")',
    'import subprocess as s, os\ne = dict(os.environ)\ne["LD_PRELOAD"] = "/tmp/x"\ns.run(["ls"], env=e)',
    'import subprocess as s\ns.run(["ls"], env=unknown)',
    'import os\nos.chdir(f()); print(open("id_rsa").read())',
    'import tarfile; tarfile.open("x.tar").extractall("/home/ann")',
    'import os; os.write(os.open("/home/ann/.bash" + "rc", 1), b"x")',
    # addresses that are put together
    'import urllib.request as u; u.urlopen("http://169.254." + "169.254/")',
    'import requests; requests.get("http://" + ".".join(["169", "254", "169", "254"]))',
]  # fmt: skip
PLAIN_PYTHON = [
    'import glob\nfor f in glob.glob("*.py"):\n  print(len(open(f).read()))',
    'import os\nfor r, d, fs in os.walk("src"):\n  for f in fs: print(open(os.path.join(r, f)).read())',
    'from pathlib import Path\nfor p in Path("src").rglob("*.py"): p.write_text(p.read_text())',
    'import os\nfor f in os.listdir("docs"): print(open(f"docs/{f}").read())',
    "import sys; print(open(sys.argv[1]).read())",
    'def load(p):\n  return open(p).read()\nprint(load("a.txt"))',
    'files = ["a.txt", "b.txt"]\nfor f in files: print(open(f).read())\nprint(open(files[0]).read())',
    'for i in range(3): open(f"out{i}.txt", "w").write("x")',
    'import json\nwith open("a.json") as f: print(json.load(f))',
    'import yaml; print(yaml.safe_load(open("a.yml")), yaml.load("x", Loader=yaml.SafeLoader))',
    'import subprocess, sys; subprocess.run([sys.executable, "-m", "pytest"])',
    'import sys; sys.path.insert(0, "src"); import app; print(app.__version__)',
    "import platform; print(platform.system())",
    'import subprocess as s\nc = ["ls", "-l"]\nprint(c)\ns.run(c + ["src"])',
    'import subprocess as s, os\ns.run(["ls"], env={**os.environ, "LANG": "C"})',
    'import zipfile; zipfile.ZipFile("a.zip").extractall("out")',
    'import os; os.chdir("src"); print(open("a.py").read())',
    "import asyncio\nasync def m(): await asyncio.sleep(1)\nasyncio.run(m())",
    "import threading, time; threading.Thread(target=time.sleep, args=(1,)).start()",
    "class A:\n  def __init__(self): self.x = 1\n  def run(self): return self.x\nprint(A().run())",
    'import sqlite3; print(sqlite3.connect("a.db").execute("select 1").fetchall())',
    'import requests; print(requests.get("https://example.com/" + "a").json())',
    "from app import main; main()",
]
OTHERS = [
    ("node -e", 'process["binding"]("spawn_sync")'),
    ("node -e", '[]["con" + "structor"]["con" + "structor"]("return process")()'),
    ("node -e", 'require("fs").readFileSync("." + "env")'),
    ("node -e", 'fetch("http://169.254." + "169.254/")'),
    ("node -e", 'require("shelljs").exec("curl x")'),
    ("node -e", 'require("./evil.node")'),
    ("node -e", 'process.env.LD_PRELOAD="/tmp/x"; require("child_process").execSync("ls")'),
    ("node -e", 'require("child_process").execSync("ls", {env: {LD_PRELOAD: "/tmp/x"}})'),
    ("perl -e", 'open(local *F, "curl x|")'),
    ("perl -e", 'open($h{a}, "curl x|")'),
    ("perl -e", 'my $c = "curl x|"; open(F, $c)'),
    ("perl -e", '@ARGV = ("curl x|"); print <>'),
    ("perl -e", 'open(F, "<.env")'),
    ("perl -e", 'open(F, "<", "." . "env")'),
    ("perl -e", 'do("/tmp/x.pl")'),
    ("perl -e", '$ENV{LD_PRELOAD} = "/tmp/x"; system("ls")'),
    ("perl -MPOSIX -e", 'execvp("curl")'),
    ("ruby -e", '%x"curl x"'),
    ("ruby -e", "%x-curl x-"),
    ("ruby -e", 'Kernel.`("curl x")'),
    ("ruby -e", 'Kernel.open("|curl x")'),
    ("ruby -e", 'IO.read("|curl x")'),
    ("ruby -e", 'system("cu" "rl x")'),
    ("ruby -e", 'alias s system; s "curl x"'),
    ("ruby -e", "system <<~E\n curl x\nE\n"),
    ("ruby -e", 'puts File.read("." + "env")'),
    ("php -r", 'register_shutdown_function("system", "curl x");'),
    ("php -r", 'system/**/("curl x");'),
    ("php -r", 'use function system as s; s("curl x");'),
    ("php -r", 'echo file_get_contents("." . "env");'),
    ("php -r", 'echo file_get_contents(implode("", [".", "env"]));'),
    ("node -e", 'require("fs").readFileSync([".", "env"].join(""))'),
    ("node -e", 'require("fs").readFileSync(String.fromCharCode(46) + "env")'),
    ("node -e", 'require("http").get("http://" + ["169", "254", "169", "254"].join("."))'),
    ("perl -e", 'open(F, "<", join("", ".", "env"))'),
    ("ruby -e", 'File.read([".", "env"].join)'),
    ("ruby -e", 'puts File.read(46.chr + "env")'),
]
PLAIN_OTHERS = [
    ("node -e", 'require("fs").writeFileSync("a.txt", "x" + "y")'),
    ("node -e", 'console.log(require("child_process").execSync("ls", {encoding: "utf8"}))'),
    ("perl -e", 'open(my $f, "<", "a.txt"); print <$f>'),
    ("perl -ne", "print if /a/"),
    ("node -e", 'console.log(require("fs").readFileSync("a.txt").toString().slice(1))'),
    ("node -e", 'const p = require("path"); require("fs").writeFileSync(p.join("a", "b"), "x")'),
    ("ruby -e", 'puts File.read("a.txt").downcase'),
    ("ruby -e", 'puts File.read("a.txt"); system("ls")'),
    ("php -r", 'echo file_get_contents("a.txt");'),
]
WRITTEN = [
    f'echo "{INNER}" > x.py && python3 -m x',
    f"echo \"{INNER}\" > x.py && python3 -c 'import x'",
    f'echo "{INNER}" > conftest.py && pytest',
    f"echo \"{INNER}\" > sitecustomize.py && python3 -c 'print(1)'",
    f'mkdir x; echo "{INNER}" > x/__main__.py; python3 x',
    f"echo \"{INNER}\" > json.py; python3 -c 'import json'",
    "printf 'all:\\n\\tcurl x\\n' > Makefile; make",
    "cat > x.c <<'E'\nint main(){system(\"curl x\");}\nE\ncc x.c && ./a.out",
    # `cat FILE` prints the file, whatever stands on its standard input
    "cat evil.py <<'E' > x.py; python3 x.py\nprint(1)\nE\n",
    "cat evil.py <<'E' | python3\nprint(1)\nE\n",
    # more than one command writes into the pipe
    f"{{ echo \"{INNER}\"; echo 'print(1)'; }} | python3",
    f"(echo 'print(1)'; echo \"{INNER}\") | python3",
    f"echo() {{ printf \"{INNER}\"; }}; echo 'print(1)' | python3",
    f'echo "{INNER}" | python3',
    f'echo "{INNER}" | python3 -',
    "echo 'curl x' | sh",
    "printf '%s\\n' 'curl x' | bash",
    "echo 'print(1) #\\nimport evil' | python3",
    f"python3 -m pdb -c '!{INNER}' x.py".replace("'curl x'", '"curl x"'),
    f'python3 -m code <<< "{INNER}"',
    "node --import 'data:text/javascript,process.exit(1)' -e 1",
]
PLAIN_WRITTEN = [
    "echo 'print(1)' | python3",
    "echo 'print(1)' | python3 -",
    "cat <<'E' | python3\nprint(1)\nE\n",
    "printf '%s\\n' 'ls' | sh",
    "echo 'console.log(1)' | node",
    "echo 'x = 1' > x.py && python3 -m x",
    "echo 'def test_x(): pass' > test_x.py && pytest -q",
    "printf 'a' > notes.txt; make",
    "python3 -m pdb x.py",
]


def python(code: str) -> str:
    return f"python3 -c {shlex.quote(code)}"


@pytest.mark.requirement("POL-2", "POL-4", "POL-12")
@pytest.mark.parametrize("code", PYTHON)
def test_python_that_can_start_or_read_what_is_denied_is_not_allowed(code: str):
    assert verdict(EVERYTHING, python(code)) != "allow"


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize("code", PLAIN_PYTHON)
def test_ordinary_python_is_allowed(code: str):
    assert verdict(EVERYTHING, python(code)) == "allow"


@pytest.mark.requirement("POL-2", "POL-4", "POL-12")
@pytest.mark.parametrize(("program", "code"), OTHERS)
def test_other_code_that_can_start_or_read_what_is_denied_is_not_allowed(program: str, code: str):
    assert verdict(EVERYTHING, f"{program} {shlex.quote(code)}") != "allow"


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize(("program", "code"), PLAIN_OTHERS)
def test_other_ordinary_code_is_allowed(program: str, code: str):
    assert verdict(EVERYTHING, f"{program} {shlex.quote(code)}") == "allow"


@pytest.mark.requirement("POL-2", "POL-4", "POL-12")
@pytest.mark.parametrize("command", WRITTEN)
def test_code_that_is_written_or_piped_and_then_run_is_judged(command: str):
    assert verdict(EVERYTHING, command) != "allow"


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize("command", PLAIN_WRITTEN)
def test_harmless_code_that_is_written_or_piped_is_allowed(command: str):
    assert verdict(EVERYTHING, command) == "allow"


def test_a_rule_that_spells_out_the_code_means_it_and_nobody_is_asked():
    assert verdict(MEANT, python("import pkgutil; print(pkgutil.walk_packages())")) == "allow"
