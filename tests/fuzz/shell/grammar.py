"""Shell texts by grammar: every kind of expansion, quote, redirection and compound command.

Forms stand in tables; each is drawn with equal weight, and `{w}` and the like in a form are drawn in
their turn. Some texts get a character in a wrong place. The same seed gives the same texts.
"""

from __future__ import annotations

import random
import re

_SIGNS = [
    *"$`\"'\\{},.~*?[]()=:+-@!#^%&|;<>/ \t\n",
    *(
        "a",
        "x",
        "1",
        "..",
        "$(",
        "${",
        "$'",
        "#",
        "`#",
        "((",
        "))",
        "[[ ",
        " ]]",
        ";;",
        "<<",
        "<<<",
    ),
    *(
        "<(",
        ">(",
        " esac",
        "do ",
        " fi",
        "time ",
        "coproc ",
        "function ",
        "{ ",
        " }",
        "&>",
        "|&",
        " #",
    ),
    *(
        "\\\n",
        "$((",
        "$[",
        "p1",
        ";p1",
        "\np1",
        "(p1)",
        "`p1`",
        "$(p1)",
        "<(p1)",
        " in ",
        "select ",
    ),
]
_TABLES: dict[str, list[str]] = {
    # Literal text, and pieces that braces, tildes and dollar signs could make something of.
    "l": [
        *("a", "b", "x", "xa", "E", "-x", ".env", ".en", "v", "/", "/.ssh/id_rsa", "src", "a.txt"),
        *("1", "0", "3", "HOM", "x@P", "x=", "if=", ":", "@", "%", "+", "^", "_", "", "''", '""'),
    ],
    "o": [*("$", "=", "!", "#", ",", "..", "{", "}", "[", "]", "~", "{}", "]}", "[0]", "(", ")")],
    "e": [*("\\$", "\\a", "\\\\", "\\{", "\\,", "\\}", "\\~", "\\*", "\\'", '\\"', "\\`", "\\ ")],
    "q": ["'{i}'", '"{d}"', '"{d}{d}"', "$'{z}'", "$'{z}{z}'", '$"a"', "''", '""', "'{i}{i}'"],
    "i": [
        *("a", "a b", "$x", "$(p1)", "{{a,b}}", "*", "~", "\\", "`p1`", '"', "x@P", "[", ",", "}")
    ],
    "d": [
        *(
            "a",
            "a b",
            "$x",
            "${{x}}",
            "$(p1)",
            "`p1`",
            "{{a,b}}",
            "*",
            "~/a",
            "\\$x",
            "\\\\",
            "\\a",
        ),
        *("'", "{p}", "{c}", "$((1+1))", "\\`p1\\`", "$y:h", "$@", '\\"', ".env", "-x", "{{", ","),
    ],
    "z": [
        *(
            "a",
            "\\x61",
            "\\x{{61}}",
            "\\x6",
            "\\141",
            "\\u61",
            "\\U61",
            "\\n",
            "\\cA",
            "\\'",
            "\\0",
        ),
        *(
            "\\q",
            "\\\\",
            "\\xg",
            "\\400",
            '\\"',
            "\\?",
            "\\e",
            "\\u20ac",
            "\\x5c",
            "\\x24(p1)",
            "b c",
        ),
    ],
    # Parameters.
    "n": ["x", "y", "a", "xa", "HOME", "U1", "U2", "U3", "U4", "PWD", "none", "i"],
    "p": [
        *("${n}", "${n}", "${{{n}}}", "${{{n}}}", "${{{n}:-{w}}}", "${{{n}:+{w}}}", "${{{n}-{w}}}"),
        *("${{{n}:={w}}}", "${{{n}#{w}}}", "${{{n}%{w}}}", "${{{n}/{w}/{w}}}", "${{{n}:0:1}}"),
        *("${{{n}:1}}", "${{#{n}}}", "${{!{n}}}", "${{!{n}@}}", "${{{n}@Q}}", "${{{n}@P}}", "$*"),
        *(
            "${{{n}@E}}",
            "${{{n}^}}",
            "${{{n},,}}",
            "${{a[0]}}",
            "${{a[@]}}",
            "${{a[x]}}",
            "$1",
            "$@",
        ),
        *("${{#a[@]}}", "$#", "$?", "$$", "$!", "$-", "$_", "$0", "${n}[0]", "${n}:h", "$RANDOM"),
        *("${{{n}?}}", "${{{n}:{n}}}", "${{{n}//{l}/{l}}}", "${{{n}:-$(p1)}}", "${{{n}@L}}", "$9"),
    ],
    "m": [
        "$((1+2))",
        "$((x))",
        "$((x+1))",
        "$((a[0]))",
        "$[1+1]",
        "$((x=2))",
        "$(( $y ))",
        "$((y))",
    ],
    "c": [
        *("$(p1)", "`p1`", "$(echo {w})", "`echo {w}`", "$(<{w})", "$(p1 | p2)", '$(echo "{d}")')
    ],
    "s": ["<(p1)", ">(p1)"],
    "b": [
        *("{{{w},{w}}}", "{{{w},{w}}}", "{{{w},{w},{w}}}", "{{{l},{l}}}", "{{,{w}}}", "{{{w},}}"),
        *(
            "{{1..3}}",
            "{{a..c}}",
            "{{a..Z..5}}",
            "{{Z..a..3}}",
            "{{01..3}}",
            "{{3..1}}",
            "{{-1..1}}",
        ),
        *(
            "{{1..5..2}}",
            "{{v..v}}",
            "{{{w}..{w}}}",
            "{{1..$x}}",
            "{{{w}}}",
            "{{$,{w}}}",
            "{{$x,{w}}}",
        ),
        *("{{~/.ssh/id_rsa,{w}}}", "{{~,{w}}}", "{{$HOM,{w}}}E", "{{a,b}}{{c,d}}", "{{{{a,b}},c}}"),
        *("{{`,{w}}}", "{{\\,{w}}}", "{{',{w}}}", '{{",{w}}}', "{{0..10..5}}", "{{$(,{w}}}"),
    ],
    "g": [
        "*",
        "?",
        "[ab]",
        "*.txt",
        ".e*",
        ".[e]nv",
        "src/*",
        "@(a|b)",
        "*(a)",
        "!(a)",
        "[!a]*",
        "**",
    ],
    "t": [
        *("~", "~/", "~/.ssh/id_rsa", "~/n.txt", "~+", "~-", "~root", "~+/.env", "~/.bashrc", "~x"),
        *("x=~", "x=~/a", "if=~/.ssh/id_rsa", "x=a:~/b", "a[0]=~/b", "x+=~", "--f=~/a", "a:~/b"),
        *("~$x", "~'a'", "~\\a", "~[a]", "~0", "~:~", "of=~/.bashrc"),
    ],
    "f": [
        "{l}",
        "{l}",
        "{q}",
        "{p}",
        "{b}",
        "{b}",
        "{e}",
        "{c}",
        "{g}",
        "{t}",
        "{m}",
        "{o}",
        "{s}",
    ],
    "w": ["{l}", "{f}", "{f}", "{f}{f}", "{f}{f}", "{f}{f}{f}"],
    # Files that a reader or a redirection would operation.
    "k": [
        *("{w}", ".env", "~/.ssh/id_rsa", "{b}", ".en{b}", "{p}", "{q}", "{t}", "{g}", ".e{p}v"),
        *("a.txt", "src/app.py", "{l}{p}", "secrets/key", "$x", '"$x"', "$(echo {l})", "~/{w}"),
    ],
    "v": [
        *("{w}", "{w}", "'$(p1)'", "'a b'", "'*'", "~/.ssh/id_rsa", ".env", "1", "", "'a[$(p1)]'"),
        *("'${{x@P}}'", "'`p1`'", "-x", "$y", "$!", "$?", "'~/.ssh/id_rsa'", "'{{a,b}}'", "'a\\*'"),
    ],
    # What sets variables.
    "a": [
        *("x={v}", "x={v}", "x={v}", "y={v}", "xa={v}", "x={v}; y={v}", "x={v}; xa={v}", "x+={v}"),
        *(
            "a=({w} {w})",
            "a=([0]={v})",
            "export x={v}",
            "declare x={v}",
            "readonly y={v}",
            "local x",
        ),
        *(
            "x={v} y={v}",
            "read x <<< {w}",
            "read x < {k}",
            "printf -v x %s {w}",
            "printf {{-v,x}} {w}",
            "read {{x,y}} <<< {w}",
            "unset {{x,y}}",
            "mapfile {{-t,a}} < {k}",
            "unset x",
            "x=({v})",
        ),
        *(
            "declare -i x={v}",
            "declare -u x={v}",
            "export x",
            "typeset y={v}",
            ": ${{x:={v}}}",
            "x=$y",
        ),
        *(
            "set -- {w} {w}",
            "mapfile -t a < {k}",
            "let x=1",
            "((x=1))",
            "x=a; unset x",
            "f() {{ x={v}; }}",
        ),
        *(
            "false && x={v}",
            "(x={v})",
            "if p0; then x={v}; fi",
            "x={v} p0",
            "x={v} & y=$!",
            "IFS=a",
        ),
        *(
            "declare -n x=y",
            "exec {{x}}>out",
            "set -f",
            "set -u",
            "a[x]={v}",
            "x={v}; export x",
            "x=1",
        ),
        *(
            "for x in {w} {w}; do :; done",
            "x={v} | p0",
            "wait -p x",
            "getopts a x",
            "cd {w}",
            "cd src",
            "cd {w}/..",
            "eval cd src",
            "command -p cd secrets",
        ),
        *(
            "case a in a) x={v};; esac",
            "select x in {w}; do break; done",
            "alias p0=p1",
            "f() {{ p1; }}",
        ),
    ],
    # Simple commands, and their redirections.
    "r": [
        *("< {k}", "> {k}", ">> {k}", "2> {k}", "<> {k}", ">& {k}", "&> {k}", ">| {k}", "<& {k}"),
        *(
            "<<< {w}",
            "2>&1",
            ">&2",
            "{{x}}> {k}",
            "3< {k}",
            "<{k}",
            ">{k}",
            "> out",
            "< a.txt",
            "<&-",
        ),
        *(
            "<<E\n{d}\nE\n",
            "<<'E'\n{d}\nE\n",
            "<<-E\n\t{d}\n\tE\n",
            '<<"E"\n{i}\nE\n',
            "<<E\n{w}\nE\n",
        ),
    ],
    "C": [
        *(
            "p0 {w}",
            "p0 {w} {w}",
            "echo {w}",
            "echo {w} {w}",
            "cat {k}",
            "cat {k} {k}",
            "cp {k} {k}",
        ),
        *(
            "dd if={k}",
            "dd if={k} of={k}",
            "p0 {w} {r}",
            "cat {r}",
            "echo {w} {r}",
            "{r} cat",
            "{r}",
        ),
        *(
            "x={v} cat {k}",
            "1={v} cat {k}",
            "{l}={v} p0",
            "{w} {w}",
            "cat {k} {r}",
            "p0",
            "echo",
            ": {w}",
            ": {r}",
            "command {C}",
        ),
        *(
            "eval {w}",
            "eval '{C}'",
            "[ {w} = {w} ]",
            "[[ {w} == {w} ]]",
            "[[ {w} -eq {w} ]]",
            "(({w}))",
        ),
        *(
            "[[ -v {w} ]]",
            "[[ {w} =~ {w} ]]",
            "let {w}",
            "test {w}",
            "builtin echo {w}",
            "exec {C}",
        ),
        *("printf {w} {w}", ". {k}", "trap '{C}' EXIT", "read x {r}", "time {C}", "! {C}", "f {w}"),
    ],
    # What evaluates names, subscripts and sums, or runs text, by another door.
    "X": [
        *("[ -v {v} ]", "test -v {v}", "[[ {v} -eq {v} ]]", "[[ {v} -lt 1 ]]", "read {v} <<< a"),
        *(
            "printf -v {v} a",
            "unset {v}",
            "declare {v}",
            "export {v}",
            "((x[{v}]))",
            "readonly {v}",
        ),
        *("echo $((x[{v}]))", "a[{v}]=1", "echo ${{a[{v}]}}", "declare -i x; x={v}", "local {v}"),
        *("getopts a {v}", "mapfile {v} < a.txt", "wait -p {v} -n", "echo ${{x:{v}}}", "let {v}"),
        *(
            "trap {v} EXIT",
            "trap {v} DEBUG; :",
            "time -- {C}",
            "time -p {C}",
            "jobs -x {C}",
            "coproc p1",
        ),
        *(
            "command -- {C}",
            "command -p {C}",
            "command -v {w}",
            "exec p1",
            "echo $((echo a); (p1))",
        ),
        *(
            "case a in a) {C};& b) {C};; esac",
            "p0 <<E a\n$(p1)\nE\n",
            "cat <<E <<F\n{d}\nE\n{d}\nF\n",
        ),
        *(
            "declare -a 'a={v}'",
            "declare -A a=([{v}]=b)",
            "a=([{v}]=b)",
            "((x={v}))",
            "echo $(({v}))",
        ),
        *(
            "printf %s {v} > {k}",
            "mapfile -C p1 -c 1 a < a.txt",
            "read -a {v} <<< a",
            "hash -p /a p0",
        ),
        *(
            "((x++)) {r}",
            "[[ -n {w} ]] {r}",
            "echo ${{x@A}}",
            "x={v}; eval $x",
            "declare -n x={v}; echo $x",
        ),
        *(
            "x={v}; (( x ))",
            "x={v}; [[ $x -eq 1 ]]",
            "x={v}; echo ${{a[x]}}",
            "x={v}; y=$x$x; (( y ))",
        ),
        *(
            "x={v}; cat $x",
            'x={v}; cat "$x"',
            "x={v}; y={v}; cat $x$y",
            "x={v}; cat ${{x}}{l}",
            "shift {v}",
        ),
        *(
            "p0 $(case a in a) {C};; esac)",
            "p0 $(: # {w}\n{C})",
            "p0 $({C} <<E\n{d}\nE\n)",
            "[[ {w} == @({w}|b) ]]",
            "[[ {w} == {g}*({c}) ]]",
            "case {w} in +({c})) p0;; esac",
            "f=p1; $f",
        ),
    ],
    "S": [
        *("{X}", "{X}", "{X}", "{X}", "{X}", "{X}", "{a}; {X}", "{a}; {X}"),
        *("{C}", "{C}", "{C}", "{a}; {C}", "{a}; {C}", "{a}; {C}", "{a}; {a}; {C}", "{a}\n{C}"),
        *("{C}; {C}", "{C} | {C}", "{C} && {C}", "{C} || {C}", "{C} & {C}", "$({C})", "({C})"),
        *("{{ {C}; }}", "if {C}; then {C}; else {C}; fi", "for x in {w} {w}; do {C}; done"),
        *(
            "for x in {w}; do {C}; done",
            "while {C}; do {C}; break; done",
            "case {w} in {w}) {C};; esac",
        ),
        *(
            "case {w} in *) {C};; esac",
            "f() {{ {C}; }}; f {w}",
            "f() {{ {C}; }}; {a}; f",
            "echo <({C})",
        ),
        *(
            "{a}; for i in 1 2; do {C}; x={v}; done",
            "{a} && {C}",
            "{a} || {C}",
            "function g {{ {C}; }}; g",
        ),
        *(
            "until {C}; do {C}; break; done",
            "select x in {w}; do {C}; break; done",
            "{{ {C}; }} {r}",
        ),
        *(
            "{C} # {w}",
            "# {w}\n{C}",
            "{C} \\\n {w}",
            "for ((x=0; x<2; x++)); do {C}; done",
            "coproc {C}",
        ),
        *(
            "{a}; if {C}; then {a}; fi; {C}",
            "({a}); {C}",
            "{a} & {C}",
            "if {a}; then {C}; fi",
            "({C}) {r}",
        ),
    ],
    # One call for each word, behind what its parameters could hold.
    "W": [
        "{a}; p0 {w}",
        "p0 {w}",
        "p0 {w} {w}",
        "{a}; {a}; p0 {w}",
        "for x in {w} {w}; do p0 {w}; done",
    ],
}
_find_slot = re.compile(r"\{\{|\}\}|\{([A-Za-z])\}").sub
_LEAVES = {
    "w": "a",
    "f": "a",
    "C": "p0 a",
    "k": "a.txt",
    "v": "a",
    "p": "$x",
    "c": "$(p1)",
    "b": "{a,b}",
}
_MAX_DEPTH = 7
_TOKENS = (
    *(
        "p0",
        "p1",
        "a",
        "b",
        "1",
        "2",
        "x",
        "x=",
        "1=",
        "a[",
        "]=",
        "+=",
        "=",
        "[",
        "]",
        "$x",
        ".env",
    ),
    *(
        "(",
        ")",
        "{",
        "}",
        "((",
        "))",
        "[[",
        "]]",
        "$(",
        "$((",
        "${",
        "${x",
        "`",
        "'",
        '"',
        "$'",
        "\\",
    ),
    *(";", ";;", ";&", "&", "&&", "|", "||", "|&", "!", "#", "\n", " ", "\t", "\\\n"),
    *(
        "<",
        ">",
        ">>",
        "<>",
        ">&",
        "<&",
        "&>",
        "&>>",
        ">|",
        "<<<",
        "<<E\n",
        "\nE\n",
        "<(",
        ">(",
        "{x}",
    ),
    *(
        "time",
        "if",
        "then",
        "else",
        "fi",
        "do",
        "done",
        "case",
        "in",
        "esac",
        "for",
        "while",
        "until",
    ),
    *("select", "function", "coproc", "p0()", "p0() {", "let ", "declare ", "export ", "local "),
    *(
        "test ",
        "exec ",
        "command ",
        "builtin ",
        "eval ",
        "cat ",
        "echo ",
        "-v",
        "-p",
        "--",
        "-",
        "~",
    ),
    *("*", "?", "@", "%", "^", "/", ":", ",", "..", "==", "=~", "!=", "@P", "p0 $(p1)", "x=a p0"),
)


class Texts:
    """An endless supply; `seed` decides all of it."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.words = 0

    def word_text(self) -> str:
        """A call of `p0` with generated words."""
        return self._spoiled(self._draw("W", 0), 0.15)

    def command_text(self) -> str:
        """Any statement."""
        return self._spoiled(self._draw("S", 0), 0.4)

    def token_text(self) -> str:
        """Signs and words of the shell in any order, for where its parser and ours differ."""
        some = self._random.choices(_TOKENS, k=self._random.randint(2, 12))
        text = "".join(f"{each}{self._random.choice(('', ' '))}" for each in some)
        return self._random.choice(("{}", "p0 a; {}", "p0 a | {}", "{}\np0 b")).replace("{}", text)

    def _draw(self, table: str, depth: int) -> str:
        self.words += table == "w"
        if depth > _MAX_DEPTH:
            return _LEAVES.get(table, "a")
        form = self._random.choice(_TABLES[table])

        def fill(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0][0]
            return self._draw(found[1], depth + 1)

        return _find_slot(fill, form)

    def _spoiled(self, text: str, share: float) -> str:
        while self._random.random() < share:
            at = self._random.randint(0, len(text))
            text = text[:at] + self._random.choice(_SIGNS) + text[at:]
        return text
