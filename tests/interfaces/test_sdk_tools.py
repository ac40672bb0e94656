"""Tools of the host in the hands of code: what is asked, checked, called, told and recorded."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import anyio
import pydantic
import pytest

import cellwall
from cellwall import Sandbox, Status
from cellwall.admin.audit_queries import check
from cellwall.core.outcomes import Finding, Outcome
from cellwall.core.types import Action, CallTool, RunCode
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.sdk.tools import ToolBroker
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from conftest import audit_records

pytestmark = [pytest.mark.usefixtures("path"), pytest.mark.requirement("LANG-3")]
SECRET = "/root/the-host-s-own-secret"


class Host:
    """Functions with a memory of what reached them."""

    def __init__(self) -> None:
        self.called: list[object] = []

    def add(self, a: int, b: int = 1, *, names: list[str] | None = None) -> dict[str, object]:
        self.called.append((a, b, names))
        return {"sum": a + b, "names": names}

    async def later(self, text: str) -> str:
        await anyio.sleep(0.01)
        self.called.append(text)
        return text.upper()

    def anything(self, *args, **kwargs) -> list[object]:
        self.called.append((args, kwargs))
        return [list(args), kwargs]

    def breaks(self) -> None:
        self.called.append("breaks")
        raise LookupError(SECRET)

    def breaks_by_type(self) -> None:
        pydantic.TypeAdapter(dict[str, int]).validate_python({SECRET: SECRET})

    def is_refused(self) -> None:
        raise cellwall.Denied("not on a Sunday", code="CW-SUNDAY", detail=SECRET)

    def tools(self) -> dict[str, object]:
        names = [name for name in dir(self) if not name.startswith("_")]
        return {name: getattr(self, name) for name in names if name not in ("called", "tools")}


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def sbx(host: Host) -> Iterator[Sandbox]:
    with Sandbox.create(tools=host.tools()) as sandbox:
        yield sandbox


def refused(done: cellwall.Execution) -> str:
    """What the code was told."""
    assert (done.status, done.error["type"]) == (Status.FAILED, "ToolError"), done
    assert SECRET not in done.stderr + str(done.error)
    return done.error["message"]


# Calls


@pytest.mark.parametrize("once", [True, False])
def test_arguments_reach_the_host_and_its_answer_the_code(host, once):
    code = "print(tools)\n[tools.add(2, names=['é']), tools.later(text='hi'), tools.add(b=2, a=1)]"
    if once:
        done = cellwall.run_code(code, tools=host.tools())
    else:
        with Sandbox.create(tools=host.tools()) as sbx:
            done = sbx.run_code(code)
    first, second, third = done.value
    assert (first, second, third["sum"]) == ({"sum": 3, "names": ["é"]}, "HI", 3)
    assert host.called == [(2, 1, ["é"]), "hi", (1, 2, None)]
    assert done.stdout.startswith("tools: ")


def test_tools_can_be_imported_and_listed(sbx):
    assert sbx.run_code("from tools import add\nadd(1)['sum']").value == 2
    assert sbx.run_code("import tools\n'later' in dir(tools)").value is True
    assert sbx.run_code("add(2)['sum']").value == 3  # by a call later as well


@pytest.mark.parametrize(
    "value",
    [None, True, -(2**60), 1.5, "é\n\0", [], {}, [[1, {"a": None}]], "x" * 200_000],
)
def test_plain_data_arrives_as_it_was_sent(sbx, host, value):
    done = sbx.run_code(f"tools.anything({value!r}, k={value!r})")
    assert done.value == [[value], {"k": value}]
    assert host.called == [((value,), {"k": value})]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("tools.add('many')", "a: int_type, got string"),
        ("tools.add(1.5)", "a: int_type, got number"),
        ("tools.add(1.0)", "a: int_type, got number"),
        ("tools.add(True)", "a: int_type, got boolean"),
        ("tools.add('1')", "a: int_type, got string"),
        ("tools.add(1, b=True)", "b: int_type, got boolean"),
        ("tools.add(None)", "a: int_type, got null"),
        ("tools.add(float('nan'))", "a: int_type, got null"),
        ("tools.add(1, names=[1])", "names.0: string_type, got integer"),
        ("tools.add()", "a: missing_argument"),
        ("tools.add(1, 2, 3)", "2: unexpected_positional_argument"),
        ("tools.add(1, nobody=2)", "nobody: unexpected_keyword_argument"),
        ("tools.add(1, a=1)", "a: multiple_argument_values"),
        ("tools.later(5)", "text: string_type, got integer"),
    ],
)
def test_arguments_that_the_hints_do_not_allow_never_reach_the_function(sbx, host, call, told):
    assert refused(sbx.run_code(call)) == f"CW-TOOL-ARGUMENTS: wrong arguments ({told})"
    assert host.called == []


def test_arguments_that_are_no_json_fail_in_the_code(sbx, host):
    done = sbx.run_code("tools.anything({1, 2})")
    assert (done.status, done.error["type"]) == (Status.FAILED, "TypeError")
    assert sbx.run_code("tools.anything(1)").value == [[1], {}]
    assert len(host.called) == 1


def test_code_can_catch_what_went_wrong_and_go_on(sbx):
    code = "try: tools.add('x')\nexcept RuntimeError as e: told = str(e)\n[told[:17], tools.add(1)['sum']]"
    assert sbx.run_code(code).value == ["CW-TOOL-ARGUMENTS", 2]


# What the host's functions do


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize("name", ["breaks", "breaks_by_type"])
def test_an_exception_of_a_tool_reaches_the_host_program_and_not_the_code(sbx, name, caplog):
    assert refused(sbx.run_code(f"tools.{name}()")) == "CW-TOOL-FAILED: the tool failed"
    details = [record["body"].get("detail", "") for record in audit_records()]
    assert any(SECRET in detail for detail in details)  # the whole story is in the record
    [told] = [record for record in caplog.records if record.name == "cellwall.tools"]
    assert (told.getMessage(), SECRET in str(told.exc_info[1])) == (f"the tool {name} raised", True)


@pytest.mark.requirement("ERR-1")
def test_a_cellwall_error_of_the_host_is_told_by_its_safe_words(sbx):
    assert refused(sbx.run_code("tools.is_refused()")) == "CW-SUNDAY: not on a Sunday"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (object(), "gave an answer that is not JSON"),
        ({1, 2}, "gave an answer that is not JSON"),
        (math.nan, "gave an answer that is not JSON"),
        ([math.inf], "gave an answer that is not JSON"),
        (b"raw", "gave an answer that is not JSON"),
        ("x" * 5_000_000, "is too long"),
    ],
    ids=["object", "set", "nan", "inf", "bytes", "long"],
)
def test_an_answer_that_cannot_be_told_is_an_error(answer, told):
    done = cellwall.run_code("tools.give()", tools={"give": lambda: answer})
    assert told in refused(done)


def test_a_long_answer_within_the_bound_arrives():
    done = cellwall.run_code("len(tools.give())", tools={"give": lambda: "é" * 600_000})
    assert done.value == 600_000


def test_answers_are_made_plain():
    done = cellwall.run_code("tools.give()", tools={"give": lambda: {"a": (1, "\ud800"), 2: None}})
    assert done.value == {"a": [1, "\ufffd"], "2": None}


def test_every_kind_of_function_can_be_offered(host):
    class Object:
        def __call__(self, n: int) -> int:
            return n + 1

    class Later:
        async def __call__(self, n: int) -> int:
            return n + 2

    def base(n: int, m: int) -> int:
        return n + m

    tools = {"a": Object(), "b": Later(), "c": functools.partial(base, m=3), "d": lambda n: n + 4}
    done = cellwall.run_code("[getattr(tools, name)(0) for name in 'abcd']", tools=tools)
    assert done.value == [1, 2, 3, 4]
    wrong = cellwall.run_code("tools.a('x')", tools=tools)
    assert refused(wrong).startswith("CW-TOOL-ARGUMENTS")


@pytest.mark.parametrize(
    "name", ["", "two words", "1st", "a.b", "class", "_hidden", "__init__", "a-b"]
)
def test_names_that_are_no_identifiers_are_refused(name):
    with pytest.raises(cellwall.BadInput) as caught:
        Sandbox.create(tools={name: print})
    assert caught.value.code == "CW-TOOL-NAME"


def _odd(what: socket) -> None:  # type: ignore[name-defined]  # noqa: F821  # on purpose
    pass


def _unfit(what: threading.Thread) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "code"), [(5, "CW-TOOL-NAME"), (_odd, "CW-TOOL-HINTS"), (_unfit, "CW-TOOL-HINTS")]
)
def test_what_cannot_be_checked_cannot_be_offered(function, code):
    with pytest.raises(cellwall.BadInput) as caught:
        cellwall.run_code("1", tools={"odd": function})
    assert caught.value.code == code


def test_tools_cannot_be_offered_in_the_supervisor():
    with pytest.raises(cellwall.BadInput) as caught:
        Sandbox.create(keep_alive=10, tools={"a": print})
    assert caught.value.code == "CW-NO-REMOTE-TOOLS"


# Through the runtime, with parts of the test's own


@dataclass
class NoTools:
    """A policy that lets code run and denies one tool."""

    denied: str
    seen: list[Action]

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        self.seen.append(action)
        is_denied = isinstance(action.operation, CallTool) and action.operation.name == self.denied
        verdict = Verdict.DENY if is_denied else Verdict.ALLOW
        return Decision(verdict, "test", f"{self.denied} is not for you", "test")


def perform(code: str, broker: ToolBroker, policy: NoTools | None = None) -> Outcome:
    house = wiring.shared_app()
    runtime = replace(house.runtime, policy=policy or house.runtime.policy)
    operation = RunCode("python", code.encode())
    action = Action(principal=local_principal("sdk"), operation=operation, tools=broker.names)

    async def main() -> Outcome:
        return await runtime.perform(action, tools=broker)

    return anyio.run(main)


@pytest.mark.requirement("AUD-1")
def test_a_call_that_policy_denies_is_an_error_for_the_code_and_never_made(host):
    policy = NoTools("add", [])
    code = "out = []\ntry: tools.add(1)\nexcept RuntimeError as e: out.append(str(e))\nout + [tools.later('a')]"
    outcome = perform(code, ToolBroker(host.tools()), policy)
    assert outcome.value == ["CW-DENIED: add is not for you", "A"]
    assert host.called == ["a"]
    code_action, denied, allowed = policy.seen
    assert [each.operation.name for each in (denied, allowed)] == ["add", "later"]
    assert (
        denied.operation.parent == allowed.operation.parent == code_action.id == outcome.action_id
    )
    assert [r["kind"] for r in audit_records(action_id=denied.id)] == ["denial"]


def test_a_tool_that_takes_too_long_is_told_and_the_code_goes_on():
    stop = threading.Event()

    async def slow() -> None:
        await anyio.sleep(60)

    code = "out = []\nfor t in (tools.slow, tools.stuck):\n    try: t()\n    except RuntimeError as e: out.append(str(e))\nout"
    broker = ToolBroker({"slow": slow, "stuck": lambda: stop.wait(30)}, timeout_s=0.2)
    try:
        told = perform(code, broker).value
    finally:
        stop.set()
    assert told == [
        f"CW-TOOL-FAILED: the tool {name} took longer than 0.2 s" for name in ("slow", "stuck")
    ]


@pytest.mark.requirement("AUD-1")
def test_each_call_has_an_intent_and_an_outcome_that_name_the_code(sbx):
    done = sbx.run_code(
        "tools.add(1, names=['n'])\ntry: tools.breaks()\nexcept tools.ToolError: pass"
    )
    calls = [r for r in audit_records() if r["body"].get("parent") == done.outcome.action_id]
    assert [(r["kind"], r["body"]["tool"]) for r in calls] == [
        ("intent", "add"),
        ("intent", "breaks"),
    ]
    assert calls[0]["body"]["arguments"] == '[[1], {"names": ["n"]}]'
    assert [r["session_id"] for r in calls] == [sbx.id, sbx.id]
    ends = [[*audit_records(action_id=r["action_id"])][-1] for r in calls]
    assert [(r["kind"], r["body"]["status"]) for r in ends] == [
        ("outcome", "ok"),
        ("outcome", "error"),
    ]
    assert check().ok


@pytest.mark.requirement("POL-1", "LANG-3")
def test_a_policy_named_for_the_sandbox_judges_the_tools_that_code_calls(tmp_path):
    rules = tmp_path / "policy.toml"
    rules.write_text('[permissions]\nallow = ["Code(python)", "good"]\n')
    called = []
    tools = {"good": lambda: called.append("good"), "evil": lambda: called.append("evil")}
    code = (
        "tools.good()\ntry:\n    tools.evil()\nexcept tools.ToolError as error:\n    print(error)"
    )
    with Sandbox.create(tools=tools, policy=str(rules)) as sandbox:
        done = sandbox.run_code(code)
        assert sandbox.commands.run("ls").status == "denied"
    assert called == ["good"]
    assert "CW-DENIED" in done.stdout
