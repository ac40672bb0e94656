"""Compiled languages run inside where the host has the toolchain (LANG-1)."""

from __future__ import annotations

import pytest
from tests.conftest import need

import cellwall
from cellwall.sandbox import languages
from cellwall.sandbox.toolchains import TOOLCHAINS

# Each reads a word, prints it, and ends with 3.
_PROGRAMS = {
    "c": (
        "#include <stdio.h>\n"
        'int main(void) { char word[9]; scanf("%8s", word); printf("hi %s\\n", word); return 3; }'
    ),
    "cpp": (
        "#include <iostream>\n#include <string>\n"
        'int main() { std::string word; std::cin >> word; std::cout << "hi " << word << "\\n"; '
        "return 3; }"
    ),
    "go": (
        'package main\nimport ("fmt"; "os")\n'
        'func main() { var word string; fmt.Scan(&word); fmt.Println("hi " + word); os.Exit(3) }'
    ),
    "java": (
        "class Main { public static void main(String[] words) { "
        'System.out.println("hi " + new java.util.Scanner(System.in).next()); System.exit(3); } }'
    ),
    "rust": (
        "fn main() { let mut word = String::new(); std::io::stdin().read_line(&mut word).unwrap(); "
        'println!("hi {}", word.trim()); std::process::exit(3) }'
    ),
}
_BROKEN = {"c": "int main(void) { return", "cpp": "int main() { return"}


def _by_name(names):
    # The others are some hundred MB of compilers.
    marks = {name: () if name in {"c", "cpp"} else (pytest.mark.long,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in sorted(names)]


def _need_toolchain(language):
    need(languages.available()[language], f"a compiler: {TOOLCHAINS[language].package}")


@pytest.mark.requirement("LANG-1")
@pytest.mark.parametrize("language", _by_name(TOOLCHAINS))
def test_a_program_is_compiled_and_run_inside(language):
    _need_toolchain(language)
    done = cellwall.run_code(_PROGRAMS[language], language=language, stdin="you\n", timeout=120)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hi you\n", "")


@pytest.mark.requirement("LANG-1")
def test_an_error_of_the_compiler_is_the_result_and_leaves_nothing_behind():
    _need_toolchain("c")
    with cellwall.Sandbox.create() as sbx:
        before = sbx.commands.run("ls -A /tmp").stdout
        failed = sbx.run_code(_BROKEN["c"], language="c")
        assert failed.exit_code == 1
        assert "main.c" in failed.stderr
        worked = sbx.run_code("int main(void) { return 0; }", language="c")
        assert (worked.exit_code, worked.stderr) == (0, "")
        left = set(sbx.commands.run("ls -A /tmp/*/main; ls -A /tmp").stdout.split())
        assert not any(name.endswith("/main") for name in left - set(before.split()))


@pytest.mark.requirement("LANG-1")
def test_only_allowed_languages_run(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text('[sandbox]\nallowed_languages = ["python"]\n')
    monkeypatch.setenv("CELLWALL_CONFIG", str(tmp_path / "config.toml"))
    assert cellwall.run_code("print(1)").stdout == "1\n"
    for language in ("shell", "sh", "BASH ", "c"):
        refused = cellwall.run_code("echo 1", language=language)
        assert refused.error is not None
        assert refused.error.code == "CW-LANGUAGE-NOT-ALLOWED"
        assert "python" in refused.error.hint
