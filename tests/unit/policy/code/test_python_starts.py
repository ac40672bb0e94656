"""What Python code starts, reads and writes is read from its syntax tree."""

from __future__ import annotations

import pytest

from cellwall.policy.code.python_starts import look_into_python
from cellwall.policy.code.sieve import Starts
from cellwall.policy.code.starts import starts_in

SCRIPTS = [
    ('import os; os.system("a b")', ["a b"]),
    ('import os as o; o.popen("a b")', ["a b"]),
    ('from os import system as s; s("a")', ["a"]),
    ('from os import *; system("a")', ["a"]),
    ('__import__("os").system("a")', ["a"]),
    ('import importlib; importlib.import_module("os").system("a")', ["a"]),
    ('import os; f = os.system; f("a")', ["a"]),
    ('import os; getattr(os, "sys" + "tem")("a")', ["a"]),
    ('import sys; sys.modules["os"].system("a")', ["a"]),
    ('import os; c = "a"; os.system(c + " b")', ["a b"]),
    ('import os; os.system(f"a b")', ["a b"]),
    ('import os; os.system(" ".join(["a", "b"]))', ["a b"]),
    ('import subprocess as s; s.run("a b", shell=True)', ["a b"]),
    ('import subprocess as s; s.run(args="a b", shell=True)', ["a b"]),
    ('import subprocess as s; s.run(["a b"], shell=True)', ["a b"]),
    ('import subprocess; subprocess.getoutput("a")', ["a"]),
    ('import asyncio; asyncio.create_subprocess_shell("a")', ["a"]),
    ('import pexpect; pexpect.spawn("a b")', ["a b"]),
    ("exec(\"import os; os.system('a')\")", ["a"]),
    ('import os; os.system("%s b" % "a")', ["a b"]),
    ('import os; os.system("%s %s" % ("a", "b"))', ["a b"]),
    ('import os; os.system("{} {x}".format("a", x="b"))', ["a b"]),
    ('loop.subprocess_shell(P, "a")', ["a"]),
    ('import pydoc; pydoc.pipepager("x", "a")', ["a"]),
    ("import timeit; timeit.timeit(setup=\"import os; os.system('a')\")", ["a"]),
    ("import cProfile; cProfile.run(\"__import__('os').system('a')\")", ["a"]),
    ("eval(\"__import__('os').system('a')\")", ["a"]),
]
VECTORS = [
    ('import subprocess; subprocess.run(["a", "b"])', [["a", "b"]]),
    ('import subprocess; subprocess.Popen(("a", "b"))', [["a", "b"]]),
    ('import subprocess; subprocess.call(["a"] + ["b"])', [["a", "b"]]),
    ('import subprocess; subprocess.check_output("a b".split())', [["a", "b"]]),
    ('import subprocess, shlex; subprocess.call(shlex.split("a b"))', [["a", "b"]]),
    ('import os; os.execvp("a", ["x", "b"])', [["a", "b"]]),
    ('import os; os.execl("/a", "x", "b")', [["/a", "b"]]),
    ('import os; os.spawnv(os.P_WAIT, "a", ["x", "b"])', [["a", "b"]]),
    ('import os; os.spawnlp(os.P_WAIT, "a", "x", "b")', [["a", "b"]]),
    ('import os; os.posix_spawn("a", ["x", "b"], {})', [["a", "b"]]),
    ('import asyncio; asyncio.create_subprocess_exec("a", "b")', [["a", "b"]]),
    ('import pty; pty.spawn(["a", "b"])', [["a", "b"]]),
    ('import shutil; shutil.rmtree("a")', [["rm", "-rf", "a"]]),
    ('import os; os.remove("a")', [["rm", "-f", "a"]]),
    ('from pathlib import Path; Path("a").unlink()', [["rm", "-f", "a"]]),
]
UNKNOWN = [
    "import os, sys; os.system(sys.argv[1])",
    "import os; os.system(input())",
    'import os; os.system("a %s" % x)',
    "import os; [os.system(c) for c in cs]",
    "import os; list(map(os.system, ['a']))",
    "import subprocess; subprocess.run(x)",
    "import subprocess; subprocess.run(*x)",
    'import subprocess; subprocess.run(["a"], executable="b")',
    "import subprocess; subprocess.run(**x)",
    "exec(x)",
    "import base64; exec(base64.b64decode('eA=='))",
    "getattr(x, y)('a')",
    "__import__(x).system('a')",
    "x = [print][0]; [x][0]('a')(1)",
    "this is no Python: os.system(x",
]
HARMLESS = [
    "print(1)",
    "import sys; print sys.argv[1:]",
    "import asyncio; asyncio.run(main())",
    "from app import main; main()",
    'text = "a"; text.replace("a", "b"); [1].remove(1)',
    'import numpy as np; np.zeros(3).copy("C")',
    'd = {}; d["a"] = 1; app.run(debug=True)',
]
FILES = [
    ('open("a").read()', [("read", "a")]),
    ('open("a", "w").write("x")', [("read", "a"), ("write", "a")]),
    ('open("a", mode="r+")', [("read", "a"), ("write", "a")]),
    ('open("a", m)', [("read", "a"), ("write", "a")]),
    ('from pathlib import Path; p = Path("a"); p.write_text("x")', [("write", "a")]),
    ('from pathlib import Path; (Path.home() / ".x" / "y").read_text()', [("read", "~/.x/y")]),
    ('import os; open(os.path.expanduser("~/.x"))', [("read", "~/.x")]),
    ('import os; open(os.environ["HOME"] + "/.x")', [("read", "~/.x")]),
    ('import os; open(os.path.join("a", "b"))', [("read", "a/b")]),
    ('import shutil; shutil.copy("a", "b")', [("read", "a"), ("write", "b")]),
    ('import os; os.rename("a", "b")', [("read", "a"), ("write", "b"), ("write", "a")]),
    ('import os; os.chmod("a", 0o777)', [("write", "a")]),
]


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(("code", "scripts"), SCRIPTS)
def test_text_for_a_shell_is_found(code: str, scripts: list[str]):
    found = starts_in("python", code)
    assert [word.text for word in found.scripts] == scripts
    assert found.unknown == ""


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(("code", "commands"), VECTORS)
def test_argument_vectors_are_found(code: str, commands: list[list[str]]):
    found = starts_in("python", code)
    assert [[word.text for word in words] for words in found.commands] == commands
    assert found.unknown == ""


@pytest.mark.requirement("POL-2", "POL-12")
@pytest.mark.parametrize("code", UNKNOWN)
def test_what_is_put_together_while_it_runs_is_unknown(code: str):
    assert starts_in("python", code).unknown


@pytest.mark.parametrize("code", HARMLESS)
def test_ordinary_code_starts_nothing(code: str):
    found = starts_in("python", code)
    assert (found.scripts, found.commands, found.files, found.unknown) == ([], [], [], "")


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(("code", "files"), FILES)
def test_files_that_are_written_out_are_found(code: str, files: list[tuple[str, str]]):
    found = starts_in("python", code).files
    assert [(file.access, file.path.text) for file in found] == files


def test_more_than_can_be_judged_is_unknown():
    code = "import os\n" + 'os.system("a")\n' * 100
    assert starts_in("python", code).unknown
    assert starts_in("python", "x" * 70_000).unknown


def test_deep_code_ends_with_an_answer():
    assert starts_in("python", "x" + ".y" * 3000 + "()").unknown in {
        "",
        "the Python code cannot be parsed",
        "it calls what is put together while it runs",
    }


@pytest.mark.requirement("POL-2")
def test_names_with_many_values_each_take_no_exponential_time() -> None:
    chains = "".join(f"a{i} = os.path.join(a{i + 1}, 'x')\n" * 8 for i in range(12))
    found = Starts()
    look_into_python(f"import os\n{chains}open(a0)\n", found)
    assert "puts the name of a file together" in found.asked
