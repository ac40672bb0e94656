"""Rich results: every form, and every way in which a value can try to spoil it."""

from __future__ import annotations

import base64
import enum
import json
import linecache
import os
import subprocess
import sys
import types
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from cellwall.sandbox import languages
from cellwall.sandbox.inside import show
from cellwall.sandbox.templates import environments
from python_data import python_data_home

PIXEL = b"\x89PNG\r\n\x1a\n\x00\xff"


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# The forms of a value


@pytest.mark.requirement("LANG-2")
def test_every_form_by_its_method():
    class Rich:
        def __repr__(self):
            return "rich"

        def _repr_html_(self):
            return "<b>grüße</b>"

        def _repr_markdown_(self):
            return "**b**", {"isolated": True}

        def _repr_svg_(self):
            return "<svg/>"

        def _repr_png_(self):
            return PIXEL

        def _repr_jpeg_(self):
            return bytearray(PIXEL), {"width": 1}

        def _repr_pdf_(self):
            return in_base64(PIXEL) + "\n"

        def _repr_latex_(self):
            return "$x$"

        def _repr_json_(self):
            return {"a": [1, None]}

        def _repr_javascript_(self):
            return "alert(1)"

    assert show.describe(Rich()) == {
        "text": "rich",
        "html": "<b>grüße</b>",
        "markdown": "**b**",
        "svg": "<svg/>",
        "png": in_base64(PIXEL),
        "jpeg": in_base64(PIXEL),
        "pdf": in_base64(PIXEL),
        "latex": "$x$",
        "json": {"a": [1, None]},
        "javascript": "alert(1)",
    }


BUNDLE = {"text/plain": "other", "text/html": "<i>", "image/png": PIXEL, "application/x-odd": 1}


@pytest.mark.requirement("LANG-2")
@pytest.mark.parametrize("said", [BUNDLE, (BUNDLE, {"image/png": {"width": 3}})])
def test_a_bundle_goes_before_the_methods(said):
    class Bundled:
        def __repr__(self):
            return "bundled"

        def _repr_mimebundle_(self, include=None, exclude=None):
            return said

        def _repr_html_(self):
            return "<b>"

        def _repr_latex_(self):
            return "$y$"

    forms = {"text": "bundled", "html": "<i>", "png": in_base64(PIXEL), "latex": "$y$"}
    assert show.describe(Bundled()) == forms


def one_form(name, said):
    def method(self):
        if isinstance(said, BaseException):
            raise said
        return said

    kind = type("Value", (), {name: method, "__repr__": lambda self: "v"})
    return show.describe(kind())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_repr_html_", None),
        ("_repr_html_", b"<b>"),
        ("_repr_html_", 7),
        ("_repr_html_", "x" * 5_000_001),
        ("_repr_html_", ("a", "b", "c")),
        ("_repr_png_", "not base64!"),
        ("_repr_png_", bytes(4_000_000)),
        ("_repr_png_", object()),
        ("_repr_json_", {"a": float("nan")}),
        ("_repr_json_", "{not json"),
        ("_repr_json_", {"a": "x" * 5_000_001}),
        ("_repr_mimebundle_", "no bundle"),
        ("_repr_mimebundle_", {1: 2, "text/html": 3}),
        ("_repr_svg_", RuntimeError()),
        ("_repr_svg_", GeneratorExit()),
        ("_repr_svg_", BaseException()),
    ],
)
def test_what_is_no_form_is_left_out(name, said):
    assert one_form(name, said) == {"text": "v"}


def test_json_may_come_as_text_and_surrogates_never_leave():
    assert one_form("_repr_json_", '{"a": 1}') == {"text": "v", "json": {"a": 1}}
    assert one_form("_repr_html_", "a\ud800b") == {"text": "v", "html": "a?b"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_not_swallowed(stop):
    with pytest.raises(stop):
        one_form("_repr_html_", stop())


class Anything:
    """Answers to every name, as proxies and mocks do."""

    def __getattr__(self, name):
        return lambda *_, **__: f"<{name}>"

    def __repr__(self):
        return "anything"


class ClassWithForms:
    def _repr_html_(self):
        return "<b>"


class Liar:
    @property
    def __class__(self):
        raise RuntimeError

    def __repr__(self):
        return "liar"


class Meta(type):
    def __eq__(cls, other):
        raise RuntimeError

    def __hash__(cls):
        raise RuntimeError

    def __getattribute__(cls, name):
        raise RuntimeError

    def mro(cls):
        return [cls, object]


class Touchy(metaclass=Meta):
    def __repr__(self):
        return "touchy"


class Key:
    def __hash__(self):
        return hash("text/html")

    def __eq__(self, other):
        raise RuntimeError


class BadKeys:
    def __repr__(self):
        return "bad keys"

    def _repr_mimebundle_(self, **_):
        return {Key(): "x"}


@pytest.mark.parametrize(
    ("make", "text"),  # made late: pytest itself stumbles over such values
    [
        (lambda: Anything(), "anything"),
        (lambda: ClassWithForms, repr(ClassWithForms)),
        (lambda: Liar(), "liar"),
        (lambda: Touchy(), "touchy"),
        (lambda: BadKeys(), "bad keys"),
        (lambda: None, "None"),
        (lambda: sys, repr(sys)),
    ],
)
def test_hostile_values_have_their_text_and_nothing_else(make, text):
    assert show.describe(make()) == {"text": text}


@pytest.mark.parametrize("make", [mock.Mock, mock.MagicMock])
def test_mocks_have_their_text_and_nothing_else(make):
    assert show.describe(make()).keys() == {"text"}


def failing(error):
    class Failing:
        def __repr__(self):
            raise error

    return Failing()


def endless():
    class Endless:
        def __repr__(self):
            return repr(self)

    return Endless()


class Wrong:
    def __repr__(self):
        return 7


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (failing(ValueError()), "Failing"),
        (failing(GeneratorExit()), "Failing"),
        (endless(), "Endless"),
        (Wrong(), "Wrong"),
    ],
)
def test_a_repr_that_fails_is_told(value, name):
    assert show.describe(value) == {"text": f"<{name} object, its repr fails>"}


class Text(str):
    __slots__ = ()

    def __repr__(self):
        return self

    def encode(self, *_):
        raise RuntimeError

    def __getitem__(self, _):
        raise RuntimeError

    def __len__(self):
        raise RuntimeError


def test_text_is_cut_by_bytes_and_stays_text():
    assert show.describe(Text("a" * 70_000)) == {"text": "a" * 65_536}
    assert show.describe(Text("€" * 70_000)) == {"text": "€" * 21_845}


# JSON


class Colour(enum.IntEnum):
    RED = 1


class OwnInt(int):
    def __int__(self):
        return 0

    def bit_length(self):
        raise RuntimeError


class OwnList(list):
    def __iter__(self):
        raise RuntimeError


Point = namedtuple("Point", "x y")


@pytest.mark.requirement("LANG-2")
@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, None),
        (True, True),
        (2**60, 2**60),
        (-1.5, -1.5),
        ("grüße", "grüße"),
        ((1, [2, {"a": ()}]), [1, [2, {"a": []}]]),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), [1, 2]),
        (Colour.RED, 1),
        (OwnInt(5), 5),
        (OwnList([1]), [1]),
    ],
)
def test_what_has_a_json_form(value, form):
    ok, found = show.plain(value)
    assert (ok, found) == (True, form)
    assert json.loads(json.dumps(found, allow_nan=False)) == form


def test_a_text_with_methods_of_its_own_becomes_a_plain_one():
    ok, form = show.plain([Text("x")])
    assert (ok, type(form[0]), form) == (True, str, ["x"])


def nested(depth):
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def circle():
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "make",  # made late, as above
    [
        lambda: float("nan"),
        lambda: [float("inf")],
        lambda: {1: "a"},
        lambda: {None: "a"},
        lambda: {1, 2},
        lambda: b"bytes",
        lambda: 1j,
        object,
        lambda: Anything(),
        lambda: Liar(),
        lambda: Touchy(),
        lambda: nested(65),
        lambda: circle(),
        lambda: list(range(100_001)),
        lambda: "x" * 5_000_001,
        lambda: 2**5000,
        lambda: enum,
    ],
)
def test_what_has_none(make):
    assert show.plain(make()) == (False, None)


def test_a_module_that_only_calls_itself_numpy_does_no_harm(monkeypatch):
    for fake in (types.ModuleType("numpy"), mock.MagicMock(), Anything()):
        monkeypatch.setitem(sys.modules, "numpy", fake)
        monkeypatch.setitem(sys.modules, "pandas", fake)
        assert show.describe({"a": 1}) == {"text": "{'a': 1}"}
        assert show.plain(1)[0] in {True, False}


# Plots


def test_without_matplotlib_there_are_no_figures_and_it_is_not_imported():
    # In an interpreter of its own: in this one another test may have drawn something.
    code = (
        "import sys; from cellwall.sandbox.inside import show; "
        "print(show.figures(print), 'matplotlib' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[] False\n"


def test_plots_are_prepared_without_overruling_the_user(monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setenv("MPLCONFIGDIR", "/mine")
    show.prepare_plots()
    assert (os.environ["MPLBACKEND"], os.environ["MPLCONFIGDIR"]) == ("agg", "/mine")
    monkeypatch.delenv("MPLBACKEND")


@pytest.mark.parametrize("closed", [True, False])
def test_a_figure_that_cannot_be_drawn_is_shown_by_its_text(monkeypatch, closed):
    class Broken:
        def __repr__(self):
            return "broken"

        def savefig(self, *_, **__):
            raise RuntimeError

    fake = types.SimpleNamespace(get_fignums=lambda: [1], figure=lambda _: Broken())
    if closed:
        fake.close = lambda _: None
    else:
        fake.close = mock.Mock(side_effect=RuntimeError)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", fake)
    assert show.figures(lambda _: None) == [{"text": "broken"}]


# Errors


RUNNER = """
def run(code):
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return error
"""


def told(code):
    """What is told of the code's error when a runner executes it, as in the cell."""
    names: dict = {}
    exec(compile(RUNNER, "<cellwall>", "exec"), names)
    found = show.clean_traceback(names["run"](code), {"<code>": code})
    linecache.cache.pop("<code>", None)
    return found


@pytest.mark.requirement("LANG-2")
def test_a_traceback_shows_the_codes_own_lines_alone():
    found = told("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert (found["type"], found["message"]) == ("ZeroDivisionError", "division by zero")
    lines = [
        line for line in found["traceback"].splitlines() if "^" not in line and "~" not in line
    ]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<code>", line 4, in <module>',
        "    f(0)",
        '  File "<code>", line 2, in f',
        "    return 1 / x",
        "ZeroDivisionError: division by zero",
    ]


def test_frames_of_libraries_stay():
    found = told("import json\njson.loads('{')")
    assert "json/decoder.py" in found["traceback"]
    assert found["type"] == "JSONDecodeError"


def test_a_syntax_error_has_its_caret_and_no_other_frame():
    found = told("x = 1\nif x\n    pass\n")
    assert found["traceback"].splitlines() == [
        '  File "<code>", line 2',
        "    if x",
        "        ^",
        "SyntaxError: expected ':'",
    ]


def test_causes_contexts_notes_and_groups_are_shown():
    code = """
try:
    try:
        {}["a"]
    except KeyError as first:
        raise ValueError("second") from first
except ValueError:
    error = TypeError("third")
    error.add_note("a note")
    raise ExceptionGroup("many", [error, OSError("fourth")])
"""
    text = told(code)["traceback"]
    for words in (
        "KeyError: 'a'",
        "The above exception was the direct cause",
        "ValueError: second",
        "During handling of the above exception",
        "ExceptionGroup: many (2 sub-exceptions)",
        "TypeError: third",
        "a note",
        "OSError: fourth",
    ):
        assert words in text
    assert "<cellwall>" not in text


def test_a_runaway_recursion_is_shortened():
    found = told("def f():\n    f()\nf()")
    assert found["type"] == "RecursionError"
    assert "[Previous line repeated" in found["traceback"]
    assert len(found["traceback"].splitlines()) < 20


def test_a_long_chain_does_not_overflow_the_stack():
    code = """
error = None
for number in range(5000):
    new = ValueError(number)
    new.__cause__ = error
    error = new
raise error
"""
    found = told(code)
    assert found["traceback"].rstrip().endswith("ValueError: 4999")
    assert len(found["traceback"].encode()) <= 65_536


@pytest.mark.parametrize("method", ["__str__", "__repr__"])
def test_an_error_that_cannot_be_told_is_told(method):
    code = f"""
class Odd(Exception):
    def {method}(self):
        raise GeneratorExit
raise Odd(1)
"""
    found = told(code)
    assert found["type"] == "Odd"
    assert "Odd" in found["traceback"]
    assert isinstance(found["message"], str)


def test_messages_are_bounded_and_the_last_line_survives():
    code = "raise ValueError('x' * 200_000 + 'end')"
    found = told(code)
    assert len(found["message"]) == 65_536
    assert len(found["traceback"]) <= 65_536
    assert found["traceback"].endswith("xend\n")
    assert found["traceback"].startswith("Traceback (most recent call last):\n")


def test_hostile_errors_still_have_a_type():
    code = """
class Odd(Exception):
    __notes__ = property(lambda self: 1 / 0)
    __cause__ = property(lambda self: 1 / 0)
    __module__ = None
raise Odd("text")
"""
    found = told(code)
    assert (found["type"], found["message"]) == ("Odd", "text")
    assert "text" in found["traceback"]


# With the real libraries: those installed for the tests, and with `--long` those of the template
# `python-data`, which takes a minute to build, in the Python that runs inside


CODES = {
    "numbers": (
        "import numpy as np\n"
        "values = [np.int64(3), np.float32(0.5), np.bool_(True), np.str_('s'), np.array(7),\n"
        "          np.arange(6).reshape(2, 3), {'a': np.float64(1.5)}, np.array(['x', None])]\n"
        "told = [show.plain(value) for value in values]"
    ),
    "others": (
        "import numpy as np, pandas as pd\n"
        "values = [np.float64('nan'), np.zeros(10_001), np.complex64(1), np.longdouble(1),\n"
        "          np.datetime64('2026-01-01'), np.array([np.inf]), pd.Timestamp(0), pd.NA]\n"
        "told = [show.plain(value)[0] for value in values]"
    ),
    "table": (
        "import pandas as pd\n"
        "frame = pd.DataFrame({'n': [1, 2], 'x': [0.1 + 0.2, None], 's': ['a', None],\n"
        "                      't': pd.to_datetime(['2026-01-02', None]), 3: [[1], {2}]})\n"
        "told = show.describe(frame)"
    ),
    "index": (
        "import pandas as pd\n"
        "frame = pd.DataFrame({'k': ['a', 'b', 'a'], 'v': [1, 2, 3]})\n"
        "double = pd.DataFrame([[1, 2]], columns=['v', 'v'], index=pd.Index(['i'], name='v'))\n"
        "told = [show.describe(each).get('records') for each in\n"
        "        (frame.groupby('k')['v'].sum(), frame['v'], pd.Series([1.5]), double)]"
    ),
    "rows": (
        "import pandas as pd\n"
        "forms = show.describe(pd.DataFrame({'a': range(5000)}))\n"
        "wide = show.describe(pd.DataFrame([range(200)] * 1000))\n"
        "told = [len(forms['records']), forms['rows_total'], 'records' in wide]"
    ),
    "figures": (
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\n"
        "plt.show()\n"
        "other, axes = plt.subplots()\n"
        "broken = plt.figure()\n"
        "broken.savefig = None\n"
        "read = lambda figure: {'axes': len(figure.axes)}\n"
        "told = [plt.get_backend(), show.figures(read), plt.get_fignums(), show.figures(read)]"
    ),
    "flood": (
        "import numpy as np, matplotlib.pyplot as plt\n"
        "plt.rcParams['figure.max_open_warning'] = 0\n"
        "for seed in range(5):\n"
        "    plt.figure(figsize=(12, 12)).gca().imshow(\n"
        "        np.random.default_rng(seed).random((500, 500)), interpolation='none')\n"
        "told = [{key: len(form) for key, form in each.items()} for each in show.figures(lambda _: None)]"
    ),
}


def run_codes(python: str, codes: Mapping[str, str], folder: str, *, site: str = "") -> Any:
    """What each piece of code tells, run with `show` at hand by one interpreter: its imports take
    seconds.
    """
    lines = [
        "import json, sys, types",
        f"sys.path[:0] = filter(None, [{site!r}])",
        "show = types.ModuleType('show')",
        f"with open({show.__file__!r}) as file: source = file.read()",
        "exec(compile(source, '<cellwall>', 'exec'), show.__dict__)",
        "show.prepare_plots()",
        f"codes, told = {dict(codes)!r}, {{}}",
        "for name, code in codes.items():",
        "    names = {'show': show}",
        "    exec(compile(code, name, 'exec'), names)",
        "    told[name] = names['told']",
        "print(json.dumps(told, allow_nan=False))",
    ]
    done = subprocess.run(
        [python, "-I", "-W", "error", "-c", "\n".join(lines)],
        env={"MPLCONFIGDIR": folder},
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.requirement("LANG-2")
class TestInstalledLibraries:
    """numpy and matplotlib; pandas is in the template alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def real(cls, tmp_path_factory) -> dict[str, Any]:
        codes = {name: code for name, code in CODES.items() if "pandas" not in code}
        return run_codes(sys.executable, codes, str(tmp_path_factory.mktemp("matplotlib")))

    def test_numbers_and_small_arrays_have_a_json_form(self, real):
        told = real["numbers"]
        forms = [3, 0.5, True, "s", 7, [[0, 1, 2], [3, 4, 5]], {"a": 1.5}, ["x", None]]
        assert told == [[True, form] for form in forms]

    def test_figures_are_shown_once_and_closed(self, real):
        told = real["figures"]
        backend, shown, open_after, again = told
        assert (backend.lower(), open_after, again) == ("agg", [], [])
        forms = {"text", "png", "svg", "chart"}
        assert [set(each) for each in shown] == [forms, forms, {"text", "chart"}]
        assert [each["chart"] for each in shown] == [{"axes": 1}, {"axes": 1}, {"axes": 0}]
        assert shown[0]["text"].startswith("<Figure size ")
        assert base64.b64decode(shown[0]["png"]).startswith(b"\x89PNG\r\n")
        assert "<svg" in shown[0]["svg"]

    def test_a_flood_of_figures_is_bounded(self, real):
        told = real["flood"]
        assert len(told) == 5
        assert told[0].keys() == {"text", "png", "svg"}
        assert told[-1].keys() < {"text", "png", "svg"}  # there was no room left
        assert sum(sum(each.values()) for each in told) < 6_000_000 + 1000


@pytest.mark.long  # builds the template
@pytest.mark.timeout(900)
@pytest.mark.requirement("LANG-2")
@pytest.mark.xdist_group("python-data")  # what they import is installed once for all of them
class TestRealLibraries(TestInstalledLibraries):
    @pytest.fixture(scope="class")
    @classmethod
    def real(cls, tmp_path_factory) -> dict[str, Any]:
        home = python_data_home(tmp_path_factory)
        site = environments.environment_of(home, "python-data")
        assert site is not None
        return run_codes(languages.python_outside(), CODES, home, site=site)

    def test_others_have_none(self, real):
        told = real["others"]
        assert told == [False] * 8

    def test_a_table_comes_as_html_and_as_rows(self, real):
        told = real["table"]
        assert told.keys() == {"text", "html", "records", "rows_total"}
        assert "<table" in told["html"]
        assert told["rows_total"] == 2
        assert told["records"] == [
            {"n": 1, "x": 0.1 + 0.2, "s": "a", "t": "2026-01-02 00:00:00", "3": [1]},
            {"n": 2, "x": None, "s": None, "t": None, "3": "{2}"},
        ]

    def test_an_index_that_says_something_is_a_column(self, real):
        told = real["index"]
        assert told == [
            [{"k": "a", "v": 4}, {"k": "b", "v": 2}],
            [{"v": 1}, {"v": 2}, {"v": 3}],
            [{"value": 1.5}],
            [{"v": "i", "v.1": 1, "v.2": 2}],
        ]

    def test_rows_are_bounded_and_their_number_is_told(self, real):
        told = real["rows"]
        assert told == [1000, 5000, False]
