"""What is proposed is the narrowest, loads whatever the record holds, and never what was refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall, parse_call
from cellwall.policy.engine import Policy
from cellwall.policy.learning import learn
from cellwall.policy.lessons import Lesson, ProposedRule, RefusedCall, RuleFile, quote_toml, to_toml
from cellwall.policy.policy_file import builtin_rules, parse_policy
from cellwall.policy.positions import read_toml
from cellwall.policy.rules import Layer, Rule
from cellwall.policy.subjects import only_itself
from unit.policy.policies import rules

CWD, HOME = "/home/u/app", "/home/u"


def call(text: str, cwd: str = CWD) -> ToolCall:
    return parse_call(text, cwd=cwd, home=HOME)


def learnt(*texts: str, given_rules: list[Rule] | None = None) -> Lesson:
    policy = Policy(given_rules or ())
    return learn([call(text) for text in texts], policy.rules, links=only_itself, unread=())


def proposed(*texts: str) -> list[str]:
    return [each.rule for each in learnt(*texts).proposed]


def loaded(lesson: Lesson) -> Policy:
    text = to_toml(lesson)
    name = "learnt.toml"
    found = parse_policy(text, file=name, name=name, layer=Layer.SESSION, folder=CWD)
    assert [rule.text for rule in found.rules if rule.verdict is Verdict.ALLOW] == [
        rule.rule for rule in lesson.proposed
    ]
    return Policy.of(found.rules)


@pytest.mark.slow
@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Bash(git status)", ["Bash(git status)"]),
        ("Bash(git log | head -3)", ["Bash(git log)", "Bash(head -3)"]),
        ("Bash(echo 'a b' c)", ["Bash(echo a' 'b c)"]),
        ("Bash(echo '*' \"(\")", ["Bash(echo \\* \\()"]),
        ("Bash(echo hi > out.txt)", ["Bash(echo hi)", "Edit(./out.txt)"]),
        ("Read(src/a.py)", ["Read(./src/a.py)"]),
        ("Read(/etc/hosts)", ["Read(//etc/hosts)"]),
        ("Read(a[1]*.py)", ["Read(./a\\[1\\]\\*.py)"]),
        ("Edit(src/a.py)", ["Edit(./src/a.py)"]),
        ("LS(src)", ["Read(./src)"]),
        ("LS(.)", ["Read(./**)"]),
        ("WebFetch(https://docs.example.com/x?y)", ["WebFetch(domain:docs.example.com)"]),
        ('mcp__github__list({"a": 1})', ["mcp__github__list"]),
        ("TodoWrite({})", ["TodoWrite"]),
    ],
)
def test_one_call_gets_the_rule_for_exactly_itself(text, wanted):
    lesson = learnt(text)
    assert ([each.rule for each in lesson.proposed], lesson.refused) == (wanted, ())
    assert loaded(lesson).check(call(text), links=only_itself).verdict is Verdict.ALLOW


@pytest.mark.requirement("POL-10")
def test_an_exact_rule_allows_nothing_else():
    policy = loaded(learnt("Bash(git log -3)", "Bash(rm build/x)", "Read(src/a.py)"))
    for other in ("Bash(git log -4)", "Bash(git log)", "Bash(rm build/x y)", "Read(src/b.py)"):
        assert policy.check(call(other), links=only_itself).verdict is Verdict.DENY


@pytest.mark.requirement("POL-10")
def test_more_than_three_of_one_kind_become_one_rule_that_says_what_else():
    three = ["Bash(git log -1)", "Bash(git log -2)", "Bash(git log -3)"]
    assert proposed(*three) == three
    lesson = learnt(*three, "Bash(git log --stat)")
    assert lesson.proposed == (
        ProposedRule(
            "Bash(git log *)",
            ("git log -1", "git log -2", "git log -3", "git log --stat"),
            "every other command that begins with `git log`",
        ),
    )
    text = to_toml(lesson)
    assert "#   git log --stat\n" in text
    assert "# Also allows every other command that begins with `git log`.\n" in text
    loaded(lesson)


def test_the_wider_rule_keeps_all_words_that_are_shared():
    texts = [f"Bash(git log --oneline {name})" for name in "abcd"]
    assert proposed(*texts) == ["Bash(git log --oneline *)"]
    assert proposed(*(f"Bash(npm run test x{name})" for name in "abcd")) == ["Bash(npm run test *)"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        *("rm build {}", "cat {}", "python3 {}.py", "git push origin {}", "npm run {}"),
        *("pip install {}", "docker run {}", "git clean {}", "./tool sub {}", "uv run {}"),
    ],
)
def test_programs_without_harmless_kinds_stay_exact(form):
    texts = [f"Bash({form.format(name)})" for name in ("aa", "bb", "cc", "dd", "ee")]
    assert all(" *)" not in rule for rule in proposed(*texts))


@pytest.mark.requirement("POL-10")
def test_three_files_share_the_narrowest_folder():
    texts = ["Read(src/a/1.py)", "Read(src/a/2.py)", "Read(src/a/3.py)", "Read(src/b/4.py)"]
    lesson = learnt(*texts)
    assert [each.rule for each in lesson.proposed] == ["Read(./src/b/4.py)", "Read(./src/a/**)"]
    assert lesson.proposed[1].also_allows == "every other file beneath /home/u/app/src/a"
    assert proposed(*texts[1:]) == ["Read(./src/**)"]
    assert proposed("Read(x)", "Read(y)") == ["Read(./x)", "Read(./y)"]


@pytest.mark.parametrize(
    "texts",
    [
        ["Read(a)", "Read(b)", "Read(c)", "Read(d/e)"],
        ["Read(/etc/a)", "Read(/usr/b)", "Read(/opt/c)"],
        ["Read(/home/u/1)", "Read(/home/u/2)", "Read(/home/u/3)"],
    ],
)
def test_no_folder_is_widened_to_the_project_the_home_or_the_root(texts):
    assert len(proposed(*texts)) == len(texts)


def test_reading_and_writing_are_not_mixed():
    assert proposed("Read(a/1)", "Read(a/2)", "Edit(a/3)") == [
        *("Read(./a/1)", "Read(./a/2)", "Edit(./a/3)")
    ]


@pytest.mark.slow
@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize(
    "text",
    [
        *("Bash(sudo ls)", "Bash($X y)", "Bash(rm -rf /)", "Bash(ls; $(cat x))", "Bash(if)"),
        *("Bash(git status; sudo ls)", "Bash(LD_PRELOAD=x ls)", "Bash(eval $x)", "Read(/)"),
        *("Bash(cat $x)", "LS(/)", "LS(/home)", "LS(/home/u)", "Bash(echo '~')"),
        *("Bash(echo 'a\nb')", "Bash(python -c 'import os; os.system(\"x\")')", "WebFetch(x)"),
    ],
)
def test_what_is_denied_or_not_understood_gets_no_rule_but_a_reason(text):
    lesson = learnt(text)
    assert lesson.proposed == ()
    assert len(lesson.refused) == 1
    assert lesson.refused[0].reason
    loaded(lesson)


def test_a_word_that_only_steers_the_shell_gets_a_rule_of_its_own():
    assert proposed("Bash(cd x)") == ["Bash(cd x)"]


def test_what_a_rule_denies_or_asks_about_gets_no_rule():
    own = rules(ask=["Bash(git push *)"], deny=["Read(own.txt)"])
    lesson = learnt("Bash(git push)", "Read(own.txt)", "Bash(cat own.txt)", given_rules=own)
    assert lesson.proposed == ()
    assert [each.reason.partition("[")[2] for each in lesson.refused] == [
        "Bash(git push *), p.toml:1]",
        "Read(own.txt), p.toml:1]",
        "Read(own.txt), p.toml:1]",
    ]


OTHERWISE = '[permissions]\notherwise = "ask"\nallow = ["Bash(ls)"]\nask = ["Bash(git push *)"]\n'


def asking_rules(layer: Layer) -> list[Rule]:
    return [*parse_policy(OTHERWISE, file="p", name="p", layer=layer, folder=CWD).rules]


@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize("text", ["Bash(make x)", "Read(/opt/a)", "Deploy({})", "Code(python)"])
def test_what_a_file_asks_about_for_want_of_a_rule_gets_one_that_is_enough(text):
    own = asking_rules(Layer.PROJECT)
    policy = Policy(own)
    lesson = learn(
        [call(text)], policy.rules, links=only_itself, unread=(), place=RuleFile(Layer.PROJECT, CWD)
    )
    assert (len(lesson.proposed), lesson.refused) == (1, ())
    learned = parse_policy(
        to_toml(lesson), file="l", name="l", layer=Layer.PROJECT, folder=CWD
    ).rules
    assert policy.check(call(text), links=only_itself).verdict is Verdict.ASK  # the control
    assert Policy([*own, *learned]).check(call(text), links=only_itself).verdict is Verdict.ALLOW


@pytest.mark.requirement("POL-10")
def test_a_rule_of_the_users_own_answers_and_does_not_close_the_project_s_policy():
    own = asking_rules(Layer.PROJECT)
    seen = [call("Bash(make x)")]
    lesson = learn(
        seen, Policy(own).rules, links=only_itself, unread=(), place=RuleFile(Layer.USER)
    )
    assert [(each.rule, each.answers) for each in lesson.proposed] == [
        ("Bash(make x)", "otherwise")
    ]
    learned = parse_policy(to_toml(lesson), file="l", name="l", layer=Layer.USER, folder=CWD).rules
    policy = Policy([*own, *learned])
    for text in ("Bash(make x)", "Bash(ls)"):
        assert policy.check(call(text), links=only_itself).verdict is Verdict.ALLOW
    assert policy.check(call("Bash(git push x)"), links=only_itself).verdict is Verdict.ASK


@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Bash(make x)", rules(allow=["Bash(ls)"], layer=Layer.USER)),  # closed, and not ours
        ("Bash(make x)", rules(deny=["Bash(make *)"], layer=Layer.ADMINISTRATOR)),
        ("Bash(git push x)", []),  # asked about on purpose
        ("WebFetch(http://169.254.169.254/latest)", []),
        ('mcp__files__read({"path": "/home/u/.ssh/id_rsa"})', []),
        ("Read(/home/u/.ssh/id_rsa)", []),
    ],
)
def test_no_rule_is_proposed_that_another_rule_or_a_built_in_denial_makes_void(text, other):
    given_rules = Policy([*asking_rules(Layer.PROJECT), *other]).rules
    lesson = learn(
        [call(text)], given_rules, links=only_itself, unread=(), place=RuleFile(Layer.PROJECT, CWD)
    )
    assert (lesson.proposed, len(lesson.refused)) == ((), 1)


def test_what_is_allowed_by_now_is_only_counted():
    lesson = learnt("Bash(ls)", "Bash(pwd)", given_rules=rules(allow=["Bash(ls)"]))
    assert (lesson.seen, lesson.allowed_now) == (2, 1)
    assert [each.rule for each in lesson.proposed] == ["Bash(pwd)"]


def test_a_link_that_leads_elsewhere_gets_no_rule():
    def links(path: str) -> tuple[str, ...]:
        return (path, "/etc/passwd")

    lesson = learn([call("Read(a)")], Policy().rules, links=links, unread=())
    assert (lesson.proposed, len(lesson.refused)) == ((), 1)


EVIL = [
    *(
        '"',
        '"]\nallow = ["Bash"]\n#',
        "\\",
        '\\"',
        "'",
        "'''",
        '"""',
        "#",
        "]",
        "\r",
        "\x00",
        "\x1b[2J",
    ),
    *(
        "\u202e",
        "\u2028",
        "\ud800",
        "😀",
        "é",
        "*",
        ":*",
        ")",
        "(",
        "()",
        "\x7f",
        "\u200b",
        "~",
        "{}",
    ),
]
texts = st.one_of(st.sampled_from(EVIL), st.text(max_size=12), st.just(" "))
nasty = st.lists(texts, max_size=6).map("".join)


BUILTIN = builtin_rules()


@pytest.mark.requirement("POL-10")
@settings(max_examples=settings.default.max_examples, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Bash", "Read", "Edit", "WebFetch", "mcp__a__b", "Task"]), nasty
        ),
        max_size=6,
    )
)
def test_no_recorded_text_escapes_the_proposal(found):
    keys = {"Bash": "command", "WebFetch": "url"}
    calls = []
    for tool, text in found:
        prefixed = f"git log {text}" if tool == "Bash" else text
        calls.append(ToolCall(tool, {keys.get(tool, "file_path"): prefixed}, CWD, HOME))
    lesson = learn(calls, BUILTIN, links=only_itself, unread=[RefusedCall("x", "y")])
    policy = loaded(lesson)
    assert all(line.isprintable() for line in to_toml(lesson).split("\n"))
    assert policy.check(call("Bash(rm -rf build)")).verdict is Verdict.DENY


@given(nasty)
def test_a_quoted_text_is_read_back_as_itself(text):
    found = read_toml(f"x = {quote_toml(text)}").value
    safe = "".join("?" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)
    assert found == {"x": safe}


def test_long_lists_are_cut_and_the_rest_counted():
    refused = tuple(RefusedCall(f"Bash({number})", "why") for number in range(250))
    stands = tuple(f"git log {number}" for number in range(20))
    text = to_toml(Lesson((ProposedRule("Bash(git log *)", stands, ""),), refused, 270))
    assert "# Stands for 20 that were seen:" in text
    assert "#   and 12 more\n" in text
    assert text.endswith("#   and 50 more\n")


@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (RuleFile(Layer.PROJECT, CWD), "Edit(/docs/deploy.sh)"),
        (RuleFile(Layer.USER), f"Edit(/{CWD}/docs/deploy.sh)"),
        (RuleFile(), "Edit(./deploy.sh)"),  # the control: for one session
    ],
)
def test_attack_a_file_that_was_seen_does_not_stand_for_its_name_in_other_folders(place, wanted):
    seen = call("Edit(deploy.sh)", cwd=f"{CWD}/docs")
    lesson = learn([seen], (), links=only_itself, unread=(), place=place)
    assert [each.rule for each in lesson.proposed] == [wanted]
    layer = place.layer
    learned = parse_policy(to_toml(lesson), file="l", name="l", layer=layer, folder=CWD)
    policy = Policy(learned.rules)
    assert policy.check(seen, links=only_itself).verdict is Verdict.ALLOW
    elsewhere = policy.check(call("Edit(deploy.sh)"), links=only_itself).verdict
    assert (elsewhere is Verdict.ALLOW) is (layer is Layer.SESSION)


@pytest.mark.requirement("POL-10")
def test_attack_a_tool_with_the_name_of_a_server_opens_not_all_tools_of_that_server():
    assert proposed("mcp__github__get_issue({})") == ["mcp__github__get_issue"]
    lesson = learnt("mcp__github({})")
    assert (lesson.proposed, len(lesson.refused)) == ((), 1)


@pytest.mark.requirement("POL-10")
@pytest.mark.parametrize("head", ["gh repo delete", "aws s3 rm", "uv pip install", "npm add"])
def test_what_cannot_be_undone_gets_no_wider_rule(head):
    assert proposed(*(f"Bash(git add {each})" for each in "abcd")) == ["Bash(git add *)"]
    assert proposed(*(f"Bash({head} {each})" for each in "abcd")) == [
        f"Bash({head} {each})" for each in "abcd"
    ]
