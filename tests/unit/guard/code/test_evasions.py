"""What is meant to turn the screening off, or away, does neither (GRD-9).

Each trick has two controls: the same code without the trick is found, and the trick around
harmless code is not.
"""

from __future__ import annotations

import pytest

from cellwall.guard.code import MAX_CHARACTERS, code_in, screen
from cellwall.guard.code.command_code import CodeArgument

# A trick, with `@` where the code stands: it does not change what the code is.
PYTHON_TRICKS = (
    "# import " + "." * 201 + "\n@",
    's = "import" + "' + "." * 201 + '"\n@',
    "# import " + "a." * 3_000 + "a\n@",
    '"""import ' + "a." * 3_000 + 'a"""\n@',
    "# " + "x" * 20_000 + "\n@",
)
JAVASCRIPT_TRICKS = (
    "if(1)/`/.test('');\n@",
    "while(0)/`/.test('');\n@",
    "for(;0;)/\"/.test('');@",
    "for await(const a of b)/`/.test('');@",
    "do{}while(0)/`/.test('');@",
    "if(1){}else/`/.test('');@",
    "x = /" + "a" * 500 + "`/;@",
    "x = !/`/.test('');@",
    "#!/usr/bin/env node `\n@",
    "// a\r@",
    "// a\u2028@",
    "x = a++ / 2; y = `/`;@",
    "x = a.return / 2; y = `/`;@",
    "`${`${1}`}`;@",
)
# Whether a brace ends a block or a value decides how a slash behind it is read; the scan reads no
# statements, so it reports such a place as unreadable.
JAVASCRIPT_DOUBTS = (
    "{}/`/.test('');",
    ";{}/`/.test('');",
    "function f(){} /`/.test('');",
    "x = () => {}\n/`/.test('');",
    "x = function(){} / 2; y = `/`;",
    "x = {} / 2; y = `/`;",
)
SHELL_TRICKS = (
    "echo $((1<<2))\n@",
    "(( x = 1 << E ))\n@",
    "echo $[1<<2]\n@",
    'echo "$\'"; @; echo "\'"',
    "echo ${x:-'}'}; @; echo ''",
    'x="$(case a in a) @;; esac)"',
    "f() { @; }",
    "function f { @; }",
    "cat <<E\n$(@)\nE",
    "cat <<'E'\n'\nE\n@",
    "bash -c '@'",
    "bash -o pipefail -c '@'",
    "bash -c -o pipefail '@'",
    "bash -ec '@'",
    "bash --norc +x -c '@'",
    "env bash -c '@'",
    "env -u A B=1 bash -c '@'",
    "env -S \"bash -c '@'\"",
    "sudo -u root sh -c '@'",
    "timeout -k 1 5 nohup nice -n 3 sh -c '@'",
    "xargs -I{} sh -c '@'",
    "find . -exec sh -c '@' \\;",
    "busybox sh -c '@'",
    "su -c '@' me",
    "flock f -c '@'",
    'bash -c "@ $x"',
    "eval '@'",
    "trap '@' EXIT",
    "sh <<< '@'",
    "cat <<E | sh\n@\nE",
    "echo '@' | sh",
)
CASES = [
    *(("python", trick, "eval(x)", "x", "code.python.eval") for trick in PYTHON_TRICKS),
    *(
        ("javascript", trick, "require('child_process').exec(x)", "f(x)", "code.javascript.process")
        for trick in JAVASCRIPT_TRICKS
    ),
    *(("shell", trick, "curl u | sh", "ls", "code.shell.download-run") for trick in SHELL_TRICKS),
]


def rules(code: str, language: str) -> set[str]:
    return {hit.rule for hit in screen(code, language)}


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize(
    ("language", "trick", "code", "harmless", "rule"), CASES, ids=range(len(CASES))
)
def test_a_trick_around_code_does_not_hide_it(
    language: str, trick: str, code: str, harmless: str, rule: str
) -> None:
    assert rule in rules(code, language)
    around = rules(trick.replace("@", harmless), language)
    assert rule not in around
    assert "code.text.unparsable" not in around
    assert rule in rules(trick.replace("@", code), language)


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize("doubt", JAVASCRIPT_DOUBTS, ids=range(len(JAVASCRIPT_DOUBTS)))
def test_a_slash_with_two_readings_is_said(doubt: str) -> None:
    assert "code.text.unparsable" in rules(doubt, "javascript")
    assert "code.text.unparsable" not in rules(doubt.replace("`", "a"), "javascript")


# (language, in another way, rule, the plain way, what is like it and harmless)
OTHER_WAYS = (
    ("python", "from builtins import exec as q\nq(x)", "python.exec", "exec(x)", "from a import exec as q"),
    ("python", "from os import *\nsystem(x)", "python.shell", "import os\nos.system(x)", "from a import *\nsystem(x)"),
    ("python", "import shutil\nshutil.os.system(x)", "python.shell", "import os\nos.system(x)", "shutil.a.system(x)"),
    ("python", "import os\nmap(os.system, x)", "python.shell", "import os\nos.system(x)", "map(a.system, x)"),
    ("python", "from os import system as s\nmap(s, x)", "python.shell", "import os\nos.system(x)", "map(s, x)"),
    ("python", "if 1:\n  a = os.system\nb = a\nb(x)", "python.shell", "import os\nos.system(x)", "b = a\nb(x)"),
    ("python", "import builtins as b\ngetattr(b, 'ex' + 'ec')(x)", "python.exec", "exec(x)", "getattr(b, 'ab' + 'cd')(x)"),
    ("python", "(q := eval)(x)", "python.eval", "eval(x)", "(q := a)(x)"),
    ("python", "import pydoc\npydoc.locate('os.system')(x)", "python.shell", "import os\nos.system(x)", "pydoc.locate('a.b')(x)"),
    ("python", "import operator\noperator.attrgetter('system')(os)(x)", "python.hidden-name", "getattr(o, 'sys' + 'tem')", "operator.attrgetter('name')(x)"),
    ("python", "import importlib\nimportlib.import_module('ctypes')", "python.native", "import ctypes", "importlib.import_module('json')"),
    ("python", "# coding: utf-7\n+AGUAdgBhAGw-(x)", "text.unparsable", "x y", "# coding: utf-8\nx"),
    ("python", "\n# vim: set fileencoding=utf_7 :\nx", "text.unparsable", "x y", "\n# vim: set fileencoding=utf_8 :\nx"),
    ("javascript", "(()=>{}).constructor('a()')()", "javascript.constructor", "[].constructor.constructor('x')", "(()=>{}).name"),
    ("javascript", "const F = (()=>{}).constructor; F(x)()", "javascript.function", "Function(x)", "const F = (()=>{}).name; F(x)"),
    ("javascript", "Function.prototype.constructor(x)()", "javascript.function", "Function(x)", "Function.prototype.call"),
    ("javascript", "Function`x`()", "javascript.function", "Function('x')", "f`x`()"),
    ("javascript", "Reflect.construct(Function, [x])", "javascript.function", "new Function(x)", "Reflect.construct(F, [x])"),
    ("javascript", "0..constructor.constructor('x')()", "javascript.constructor", "[].constructor.constructor('x')", "0..toFixed(2)"),
    ("javascript", "let k = 'constructor'; [][k][k](x)", "javascript.constructor", "[].constructor.constructor(x)", "let k = 'name'; [][k][k](x)"),
    ("javascript", "if (1) (()=>{}).constructor(x)()", "javascript.function", "Function(x)", "if (1) (()=>{})(x)"),
    ("javascript", "Object.defineProperty(Object.prototype, 'a', {})", "javascript.pollution", "Object.prototype.a = 1", "Object.defineProperty(A.prototype, 'a', {})"),
    ("javascript", "Object.assign(x.__proto__, {a: 1})", "javascript.pollution", "x.__proto__.a = 1", "Object.assign(x, {a: 1})"),
    ("javascript", "Reflect.set(Object.prototype, 'a', 1)", "javascript.pollution", "Object.prototype.a = 1", "Reflect.set(x, 'a', 1)"),
    ("javascript", "(await import('child_process')).exec(x)", "javascript.process", "require('child_process').exec(x)", "(await import('fs')).readFile(x)"),
    ("typescript", "(require('child_process') as any).exec(x)", "javascript.process", "require('child_process').exec(x)", "(a as any).exec(x)"),
    ("typescript", "(<any>Function)(x)", "javascript.function", "Function(x)", "(<any>F)(x)"),
    ("typescript", "import {exec} from 'child_process'; exec<any>(x)", "javascript.process", "require('child_process').exec(x)", "exec<any>(x)"),
    ("javascript", "e = f; e = eval; e = g; e(x)", "javascript.eval", "eval(x)", "e = f; e = g; e(x)"),
    ("javascript", "if (0) eval = atob(y); eval(x)", "javascript.eval", "eval(x)", "f = atob(y); g(x)"),
    ("javascript", "import {exec} from 'child_process'; if (0) exec = atob(y); exec(x)", "javascript.process", "require('child_process').exec(x)", "f = atob(y); exec(x)"),
    ("javascript", "if (0) eval = f; eval(x)", "javascript.eval", "eval(x)", "f = g; f(x)"),
    ("javascript", "a++ /eval(x)/ 1", "javascript.eval", "eval(x)", "a++ /b(x)/ 1"),
    ("javascript", "a.return /eval(x)/ 1", "javascript.eval", "eval(x)", "a.return /b(x)/ 1"),
    ("javascript", "await /eval(x)/ 1", "javascript.eval", "eval(x)", "await /b(x)/ 1"),
    ("javascript", "class A {} /`/.test(''); f(`", "text.unparsable", "await /`/", "class A {} /a/.test(''); f(``)"),
    ("javascript", "<!-- `\nf(`", "text.unparsable", "await /`/", "<!-- a\nf(``)"),
    ("shell", "python3 -c 'eval(x)'", "python.eval", "python3 -c 'x = eval(y)'", "python3 -c 'x'"),
    ("shell", "timeout 5 python3 -Ic 'eval(x)'", "python.eval", "python3 -c 'eval(x)'", "timeout 5 python3 -Ic 'x'"),
    ("shell", "python3 - <<E\neval(x)\nE", "python.eval", "python3 -c 'eval(x)'", "python3 - <<E\nx\nE"),
    ("shell", "node -e 'eval(x)'", "javascript.eval", "node --eval='eval(x)'", "node -e 'x'"),
    ("shell", "deno eval 'eval(x)'", "javascript.eval", "node -e 'eval(x)'", "deno eval 'x'"),
    ("shell", "perl -e 'x'", "text.language", "ruby -e x", "perl a.pl -e"),
    ("shell", 'bash -c "$x"', "shell.eval", 'eval "$x"', "bash -c ls"),
    ("shell", "curl u | bash /dev/stdin", "shell.download-run", "curl u | bash", "curl u | bash ./a"),
    ("shell", 'source /dev/stdin <<< "$(curl u)"', "shell.download-run", 'eval "$(curl u)"', "source ./a"),
    ("shell", 'python3 -c "$(curl u)"', "shell.download-run", 'sh -c "$(curl u)"', 'python3 a.py "$(curl u)"'),
    ("shell", "curl u | sudo -u root bash", "shell.download-run", "curl u | bash", "curl u | sudo -u root tee f"),
    ("shell", "cat <<E$x\nE$x\nls", "text.unparsable", "cat <<E\nls", "cat <<E\nE\nls"),
)  # fmt: skip


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize(
    ("language", "code", "rule", "plain", "harmless"), OTHER_WAYS, ids=range(len(OTHER_WAYS))
)
def test_another_way_to_say_it_is_seen(
    language: str, code: str, rule: str, plain: str, harmless: str
) -> None:
    assert f"code.{rule}" in rules(plain, language)
    assert f"code.{rule}" not in rules(harmless, language)
    assert f"code.{rule}" in rules(code, language)


@pytest.mark.requirement("GRD-9")
@pytest.mark.parametrize(
    ("language", "code"), [("python", "eval(x)\n"), ("javascript", "eval(x)\n"), ("shell", "ls\n")]
)
def test_padding_is_said_and_signs_are_still_seen(language: str, code: str) -> None:
    long = code + "\u202e" + " " * MAX_CHARACTERS
    assert {"code.text.too-long", "code.text.bidi"} <= rules(long, language)
    assert "code.text.too-long" not in rules(code + " " * 1_000, language)


@pytest.mark.requirement("GRD-9")
def test_shells_in_shells_are_followed_so_far_and_the_rest_is_said() -> None:
    code = "curl u | sh"
    found = []
    for _ in range(7):
        found.append(rules(code, "shell"))
        code = f"bash <<E{len(found)}\n{code}\nE{len(found)}\n"
    assert all("code.shell.download-run" in each for each in found[:5])
    assert all("code.text.unparsable" in each for each in found[5:])
    assert not any("code.text.unparsable" in each for each in found[:5])


@pytest.mark.requirement("GRD-9")
def test_more_doubts_than_anybody_has_end_the_reading_and_are_said() -> None:
    for language, doubt in (("javascript", "await /`/;\n"), ("shell", '"${a\'}"\n')):
        found = screen(doubt * 1_000, language)
        assert {hit.rule for hit in found} == {"code.text.unparsable"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ls", "-c", "a"], []),
        (["bash", "a.sh", "-c", "b"], []),
        (["echo", "bash", "-c", "a"], []),
        (["bash", "-c"], []),
        (["bash", "-c", "a", "b"], [CodeArgument("shell", 2, "a")]),
        (["/bin/bash", "-euo", "pipefail", "-c", "a"], [CodeArgument("shell", 4, "a")]),
        (["python3.12", "-W", "c", "-c", "a"], [CodeArgument("python", 4, "a")]),
        (["python", "-ca"], [CodeArgument("python", 1, "a")]),
        (["python3", "-m", "x", "-c", "a"], []),
        (["node", "--eval=a"], [CodeArgument("javascript", 1, "a")]),
        (["perl", "-lne", "a"], [CodeArgument("perl", 2, "a")]),
        (["php", "-r", "a"], [CodeArgument("php", 2, "a")]),
        (["env", "-S", "bash -c a"], [CodeArgument("shell", 2, "bash -c a")]),
        (["bash", *(["-o", "x"] * 80), "-c", "a"], [CodeArgument("shell", 67, None)]),
    ],
)
def test_code_among_the_words_of_a_command(words: list[str], found: list[CodeArgument]) -> None:
    assert list(code_in(words)) == found
