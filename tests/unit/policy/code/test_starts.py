"""What code of other languages starts is found by one scan for calls."""

from __future__ import annotations

import time

import pytest

from cellwall.policy.code.starts import starts_in

FOUND = [
    ("node", 'require("child_process").execSync("a b")', ["a b"]),
    ("node", 'const {exec} = require("child_process"); exec("a", (e, o) => 1)', ["a"]),
    ("node", 'const {exec} = require("child_process"); exec("a", function (e) {})', ["a"]),
    ("node", 'require("child_process").spawn("a", ["b"], {stdio: 0})', [["a", "b"]]),
    ("node", "require('node:child_process').execFileSync('a', ['b'])", [["a", "b"]]),
    ("node", 'require("fs").rmSync("a")', [["rm", "-rf", "a"]]),
    ("perl", 'system("a b")', ["a b"]),
    ("perl", 'system "a", "b"', [["a", "b"]]),
    ("perl", "system qw(a b);", [["a", "b"]]),
    ("perl", 'exec "a" if $x;', ["a"]),
    ("perl", "print `a b`;", ["a b"]),
    ("perl", "my $x = qx{a};", ["a"]),
    ("perl", 'open(F, "| a");', ["a"]),
    ("perl", 'open(F, "a |");', ["a"]),
    ("perl", 'open(my $f, "-|", "a", "b");', [["a", "b"]]),
    ("perl", "unlink 'a';", [["rm", "-rf", "a"]]),
    ("ruby", 'system("a", "b")', [["a", "b"]]),
    ("ruby", 'puts `a`; exec "b"', ["a", "b"]),
    ("ruby", "puts %x(a b)", ["a b"]),
    ("ruby", 'IO.popen(["a", "b"])', [["a", "b"]]),
    ("ruby", 'Open3.capture2e("a b")', ["a b"]),
    ("ruby", 'FileUtils.rm_rf("a")', [["rm", "-rf", "a"]]),
    ("php", 'system("a");', ["a"]),
    ("php", "echo shell_exec('a');", ["a"]),
    ("php", "echo `a`;", ["a"]),
    ("lua", 'os.execute("a")', ["a"]),
    ("lua", "io.popen('a'):read('*a')", ["a"]),
    ("r", 'system("a")', ["a"]),
    ("julia", "run(`a b`)", ["a b"]),
    ("awk", 'BEGIN { system("a") }', ["a"]),
    ("awk", '{ print | "sort -n" }', ["sort -n"]),
    ("awk", 'BEGIN { "a b" | getline x }', ["a b"]),
    ("go", 'exec.Command("a", "b").Run()', [["a", "b"]]),
]
UNKNOWN = [
    ("node", "require('child_process').execSync(process.argv[1])"),
    ("node", "require('child_process').execSync(`a ${x}`)"),
    ("node", "require('child_process').execSync('a' + x)"),
    ("node", "const c = require('child_process'); c['ex' + 'ec']('a')"),
    ("node", "const {execSync: e} = require('child_process'); e('a')"),
    ("node", "const e = require('child_process').execSync; e('a')"),
    ("node", "require('child_' + 'process').execSync('a')"),
    ("node", "eval('a')"),
    ("node", 'new Deno.Command("a", {args: ["b"]}).spawn()'),
    ("node", 'Bun.spawn(["a", "b"])'),
    ("node", "new Function('a')()"),
    ("perl", "system $x;"),
    ("perl", 'system("a $x");'),
    ("perl", 'system("a" . "b");'),
    ("perl", "eval $x;"),
    ("perl", "&$x('a');"),
    ("perl", "use POSIX; POSIX::execl('a')"),
    ("ruby", "system(x)"),
    ("ruby", "system x"),
    ("ruby", 'system("a #{x}")'),
    ("ruby", "Kernel.send(:system, 'a')"),
    ("ruby", "eval('a')"),
    ("php", "system($x);"),
    ("php", "$f('a');"),
    ("php", "call_user_func('system', 'a');"),
    ("lua", "os.execute(x)"),
    ("lua", "load('a')()"),
    ("awk", "BEGIN { system(x) }"),
    ("awk", "{ print | x }"),
    ("awk", "BEGIN { x | getline y }"),
    ("make", "all:; a"),
    ("tcl", "exec a"),
    ("elisp", '(shell-command "a")'),
    ("code", '"a".execute()'),
]
HARMLESS = [
    ("node", 'console.log(/a/.exec("b"), require("./package.json").version)'),
    ("node", "const {a: b} = require('x'); [1, 2].map(y => y * 2)"),
    ("perl", "s/a/b/; print 'the system is up'"),
    ("perl", "eval { print 1 }; print $x{a}"),
    ("ruby", 'puts "exec #{x}"; [1].map { |y| y + 1 }'),
    ("php", "echo PHP_VERSION, strlen('a');"),
    ("lua", "print(os.time())"),
    ("awk", "$1 > 5 || $2 ~ /x/ { print $1 }"),
    ("r", "print(mean(c(1, 2)))"),
]


def _told(language: str, code: str) -> list[str | list[str]]:
    found = starts_in(language, code)
    vectors = [[word.text for word in words] for words in found.commands]
    return [*(word.text for word in found.scripts), *vectors]


@pytest.mark.requirement("POL-2")
@pytest.mark.parametrize(("language", "code", "started"), FOUND)
def test_a_command_that_is_written_out_is_found(language: str, code: str, started: list[str]):
    assert sorted(_told(language, code), key=str) == sorted(started, key=str)


@pytest.mark.requirement("POL-2", "POL-12")
@pytest.mark.parametrize(("language", "code"), UNKNOWN)
def test_a_command_that_is_not_written_out_is_unknown(language: str, code: str):
    assert starts_in(language, code).unknown


@pytest.mark.parametrize(("language", "code"), HARMLESS)
def test_ordinary_code_starts_nothing(language: str, code: str):
    assert (_told(language, code), starts_in(language, code).unknown) == ([], "")


@pytest.mark.parametrize("language", ["node", "perl", "ruby", "php", "lua", "awk", "r", "julia"])
@pytest.mark.parametrize(
    "piece", ["system(", "`", '"', "exec('", "open(F,", "| ", "\\", "${", "]("]
)
@pytest.mark.sample(16)
def test_the_scan_is_linear(language: str, piece: str):
    def cost(count: int) -> float:  # the least of three: a collection of garbage may fall into one
        took = []
        for _ in range(3):
            started = time.thread_time()
            starts_in.__wrapped__(language, piece * count)
            took.append(time.thread_time() - started)
        return min(took)

    most = 16_000 // len(piece)
    assert cost(most) < 10 * max(cost(most // 4), 0.005)
