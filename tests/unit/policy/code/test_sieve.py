"""Inline code: what is plainly harmless passes, all else has a reason, and nothing is raised."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.sieve import MAX_CHARACTERS, look_at, screen

pytestmark = pytest.mark.requirement("POL-2")

HARMLESS = [
    ("python", "d = {}; print(type(d), type(d).__name__, type(d) == dict)"),
    ("python", "class A: x = 1\nprint(A.x)"),
    (
        "python",
        "import os\nfor r, d, f in os.walk('.'): print(r, [n for n in f if '__init__' in n])",
    ),
    ("python", "try:\n x = 1\nexcept ValueError as e:\n print(e)"),
    ("node", "(() => { console.log(1) })()"),
    ("ruby", 'puts File.read("a.txt").lines.size'),
    ("python", 'import os; print(os.environ.get("A"), "B" in os.environ, os.environ["C"])'),
    ("python", 'import re; print(re.sub("a", "b", "c"), re.compile("x", re.I))'),
    ("node", 'const {readFileSync}=require("fs"); readFileSync("x.json","utf8")'),
    ("python", "print(1)"),
    ("python", 'import json,sys; print(json.load(sys.stdin)["a"])'),
    ("python", "import numpy as np; print(np.__version__)"),
    ("python", 'import json; print(json.load(open("package.json"))["version"])'),
    ("python", "import sys; print(sys.version_info[:2])"),
    ("python", 'from pathlib import Path; print(Path("x").read_text())'),
    ("python", 'import os; print(os.path.join("a","b"), os.getcwd())'),
    ("python", "import datetime; print(datetime.datetime.now().isoformat())"),
    ("python", 'print("a".replace("b","c"))'),
    ("python", 'from importlib.metadata import version; print(version("x"))'),
    ("python", 'import yaml; print(yaml.safe_load(open("a.yml")))'),
    ("python", "import site; print(site.getsitepackages())"),
    ("python", "import torch; print(torch.__version__)"),
    ("python", "import sys; [print(l.strip().upper()) for l in sys.stdin]"),
    ("node", 'console.log(require("./package.json").version)'),
    ("node", "process.versions.node"),
    ("node", 'JSON.parse(require("fs").readFileSync("x.json","utf8")).name'),
    ("node", "console.log([1,2,3].map(x=>x*2))"),
    ("node", "process.stdout.write(JSON.stringify({a:1}))"),
    ("node", 'const p=require("./package.json"); console.log(Object.keys(p.dependencies))'),
    ("node", 'JSON.parse(require("fs").readFileSync(0)).a.b'),
    ("perl", "s/foo/bar/g"),
    ("perl", "print if /x/"),
    ("perl", 'print "$F[0]\\n"'),
    ("perl", "$s+=$_; END{print $s}"),
    ("perl", "s/here/there/; print uc($_)"),
    ("perl", 'print join(",", map { $_*2 } 1..5)'),
    ("ruby", "puts 1+1"),
    ("ruby", 'require "json"; puts JSON.parse(STDIN.read)["a"]'),
    ("ruby", "puts RUBY_VERSION"),
    ("php", "echo phpversion();"),
    ("php", 'echo json_decode(file_get_contents("composer.json"))["a"];'),
    ("lua", "print(1+1)"),
    ("lua", "print(_VERSION)"),
]

REFUSED = [
    ("python", 'M = type("M", (), {})'),
    ("python", "t = type(int)"),
    ("python", "print(*map(type, [1]))"),
    ("python", "match 1:\n case int(x): print(x)"),
    ("python", 'print("{0.__class__}")'),
    ("python", "class A(B): pass"),
    ("python", "class A(metaclass=1): pass"),
    ("python", "def open(x): return x"),
    ("python", "import json\njson = 1"),
    ("python", "print({1: print}[1](2))"),
    ("python", "print(not_bound)"),
    ("node", '(()=>0)/**/["a"+"b"]'),
    ("node", "f(1)(2)"),
    ("node", '(()=>0)\ufeff["a"+"b"]'),
    ("perl", "print <>"),
    ("perl", "@$x=(1)"),
    ("perl", "print @{$x}"),
    ("perl", "print $$x"),
    ("ruby", 'puts File.read("a"+"b")'),
    ("ruby", 'puts File.read("a" "b")'),
    ("ruby", "ARGV.push(1)"),
    ("python", 'import re; re.enum.bltns.eval("x")'),
    ("python", "import base64; base64.main()"),
    ("python", 'from pathlib import Path; r=Path("a" + "b").read_text; print(r())'),
    ("python", 'from pathlib import Path; print(*map(Path.read_text, [Path("a" + "b")]))'),
    ("python", 'from pathlib import Path; r=Path("a").replace; r("b")'),
    ("python", 'import os; os.environ["PATH"]="/tmp/x"'),
    ("python", 'import os; e=os.environ; e["PATH"]="/tmp/x"'),
    ("python", 'import os; os.environ.update(PATH="/tmp/x")'),
    ("python", 'from os import environ; environ["PATH"]="/tmp/x"'),
    ("python", 'import sys; sys.path[:0]=["/tmp/x"]'),
    ("python", "import platform; platform.processor()"),
    ("node", 'const {readFileSync:r}=require("fs"); r("a"+"b")'),
    ("node", 'const r=require("fs").readFileSync; r("a"+"b")'),
    ("node", 'require("fs")["readFileSync"]("a"+"b")'),
    ("node", 'const {WriteStream}=require("fs"); new WriteStream("a")'),
    ("node", 'const {ReadStream}=require("fs"); new ReadStream("a")'),
    ("node", 'require("crypto").setEngine("/tmp/x.so")'),
    ("python", 'import os; os.system("x")'),
    ("python", '__import__("os").system("x")'),
    ("python", "import subprocess"),
    ("python", 'import subprocess as s; s.run("x")'),
    ("python", 'exec("x")'),
    ("python", 'open("x","w")'),
    ("python", "open(n).read()"),
    ("python", 'f=open; f("x","w")'),
    ("python", "().__class__.__bases__[0].__subclasses__()"),
    ("python", 'import os as o; x=o; x.system("a")'),
    ("python", "from os import system"),
    ("python", 'import glob; glob.os.system("a")'),
    ("python", 'import sys; sys.modules["os"]'),
    ("python", 'import pathlib; pathlib.Path("a").write_text("b")'),
    ("python", 'from pathlib import Path; Path("a").replace("b")'),
    ("python", 'import shutil; shutil.rmtree("x")'),
    ("python", 'import numpy as np; np.load("x", allow_pickle=True)'),
    ("python", 'import requests; requests.get("x")'),
    ("python", "import ctypes"),
    ("python", 'getattr(x,"y")'),
    ("python", 'import string; string.Formatter().get_field("0.x",(1,),{})'),
    ("python", "import typing; typing.get_type_hints(x)"),
    ("python", "match x:\n case str(__class__=y): pass"),
    ("python", 'import os; os.environ.clear(); os.execv("x",[])'),
    ("python", 'import sys; sys.path.insert(0,"/tmp"); import evil'),
    ("python", "import re as json; import json as json"),
    ("python", "print.__self__"),
    ("python", "x = open"),
    ("python", "import os.path as p; p.os"),
    ("python", "from os import path as p; p.genericpath"),
    ("python", "import urllib.request"),
    ("python", "from urllib import request"),
    ("python", 'class A:\n def __init__(s): eval("1")'),
    ("python", "import os\nos.path = 1"),
    ("python", "def open(x): pass\nopen(a)"),
    ("python", "\x00"),
    ("python", "f("),
    ("python", "import builtins"),
    ("python", "import json; json.decoder.scanner"),
    ("python", "import code; code.interact()"),
    ("python", 'open("x", **{"mode":"w"})'),
    ("python", 'open(*["x","w"])'),
    ("python", "from json import codecs"),
    ("python", "import random; random.os"),
    ("node", 'require("child_process").execSync("x")'),
    ("node", 'require("fs").writeFileSync("a","b")'),
    ("node", 'global["pro"+"cess"]'),
    ("node", 'console["constr"+"uctor"]["constr"+"uctor"]("x")()'),
    ("node", 'process.binding("x")'),
    ("node", 'eval("1")'),
    ("node", 'import("x")'),
    ("node", 'fetch("x")'),
    ("node", "require(a)"),
    ("node", 'const k="constr"+"uctor";console[k]'),
    ("node", 'Object.values(require("fs"))[3]("x")'),
    ("node", 'require("fs")["write"+"FileSync"]("a")'),
    ("node", 'process["mainModule"]'),
    ("node", 'require("fs").readFileSync(process.argv[1])'),
    ("node", '`${x}`["a"+b]'),
    ("node", 'require("fs").readFileSync("a"+b)'),
    ("node", 'new Function("x")()'),
    ("node", "process.kill(1)"),
    ("node", '\\u0065val("x")'),
    ("node", '(()=>{}).constructor("x")()'),
    ("node", 'require("node:net")'),
    ("node", 'for(const f of Object.values(require("fs")))f(1)'),
    ("perl", 'system("x")'),
    ("perl", "`id`"),
    ("perl", 'exec "x"'),
    ("perl", 'open(F,"id|")'),
    ("perl", 's/x/system("y")/e'),
    ("perl", "s{x}{1+1}e"),
    ("perl", "s/(.*)/$1/ee"),
    ("perl", "eval $x"),
    ("perl", "qx(id)"),
    ("perl", '&{"sys"."tem"}("x")'),
    ("perl", '"system"->("x")'),
    ("perl", 'unlink "a"'),
    ("perl", "use POSIX; POSIX::system(1)"),
    ("perl", "print <*.c>"),
    ("perl", 'do "x"'),
    ("perl", 'require "x"'),
    ("perl", "/(?{ 1 })/"),
    ("perl", "print while <F|>"),
    ("perl", "s/a/uc(b)/ge;"),
    ("perl", "s/a/uc(b)/eg"),
    ("perl", "s|a|uc|e"),
    ("perl", "s,a,1,e if 1"),
    ("ruby", 'system("x")'),
    ("ruby", "`id`"),
    ("ruby", "%x(id)"),
    ("ruby", 'IO.popen("x")'),
    ("ruby", 'File.write("a","b")'),
    ("ruby", 'eval "x"'),
    ("ruby", 'Kernel.exec("x")'),
    ("ruby", 'open("|id")'),
    ("ruby", 'require "open3"'),
    ("ruby", 'File.read("|id")'),
    ("ruby", 'send(:system,"x")'),
    ("ruby", 'File.delete("x")'),
    ("ruby", "File.read(x)"),
    ("php", 'system("x");'),
    ("php", "`id`;"),
    ("php", '$f="system"; $f("id");'),
    ("php", '("sys"."tem")("id");'),
    ("php", 'file_put_contents("a","b");'),
    ("php", 'include "x";'),
    ("php", 'array_map("system",["id"]);'),
    ("php", "new X;"),
    ("php", 'eval("x");'),
    ("php", 'echo file_get_contents("http://x");'),
    ("php", 'system /**/ ("id");'),
    ("php", '\\system("x");'),
    ("php", 'usort($a,"system");'),
    ("lua", 'os.execute("x")'),
    ("lua", 'io.popen("x")'),
    ("lua", 'load("x")()'),
    ("lua", 'os["exe".."cute"]("x")'),
    ("lua", 'local o=os;o.execute("x")'),
    ("lua", 'require("x")'),
    ("lua", "_G.os"),
    ("lua", 'for k,v in pairs(x) do v("id") end'),
    ("zzz", "1"),
    ("", ""),
]


@pytest.mark.parametrize(("language", "text"), HARMLESS)
def test_everyday_code_is_harmless(language: str, text: str):
    assert screen(language, text) is None


@pytest.mark.parametrize(("language", "text"), REFUSED)
def test_code_that_could_do_more_has_a_reason(language: str, text: str):
    assert screen(language, text)


def test_the_files_that_harmless_code_reads_are_told():
    assert look_at("python", "open('a'); open('b', 'rb')").reads == ("a", "b")
    assert look_at("python", "from pathlib import Path; Path('a').read_text()").reads == ("a",)
    assert look_at("node", "require('fs').readFileSync('a', 'utf8')").reads == ("a",)
    assert look_at("node", "require('fs').readFileSync(0)").reads == ()
    assert look_at("php", "echo file_get_contents('a');").reads == ("a",)
    assert look_at("ruby", "puts File.read('a')").reads == ("a",)


@pytest.mark.parametrize("language", ["python", "node", "perl", "ruby", "php", "lua"])
def test_code_that_is_unknown_or_too_long_has_a_reason(language: str):
    assert screen(language, f"print({UNKNOWN})")
    assert screen(language, "1" * (MAX_CHARACTERS + 1))


@pytest.mark.parametrize(
    "text", ["(" * 60_000, "a." * 30_000 + "b", "-" * 60_000 + "1", "[" * 300, "\0"]
)
def test_code_that_would_exhaust_a_parser_has_a_reason(text: str):
    assert screen("python", text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["python", "node", "perl", "ruby", "php", "lua", "awk", "x"]), st.text())
def test_no_text_raises(language: str, text: str):
    screen(language, text)
