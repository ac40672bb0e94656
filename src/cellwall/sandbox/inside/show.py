"""The representation of a value, a figure or an error for the caller (LANG-2).

This module has the rights of the code it runs beside, so nothing it returns is trusted outside. It
must not fail either: values belong to the code, and any of their methods may raise, lie about its
class or answer to every name. So types are read by `type()`, methods are looked up on the type, and
every method of a value is called by `_attempt`. Imports are late: most code shows nothing, and the
system's Python inside may be older than the one Cellwall runs on.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

RUNNER = ("<cellwall>", "/.cellwall/")  # file names of the runner itself
MAX_TEXT_BYTES = 64 * 1024
MAX_FORM_BYTES = 5_000_000
MAX_FIGURES_BYTES = 6_000_000  # all figures of a run; the supervisor reads 8 MiB of results
MAX_ROWS = 1000
MAX_DEPTH = 64
MAX_ENTRIES = 100_000
MAX_STRINGS = 16_000  # of a run, keys included; the supervisor takes 20,000 in a report
MAX_ARRAY_ENTRIES = 10_000
MAX_NUMBER_BITS = 4096  # Python refuses to print numbers of more than 4300 digits
_CUT = "\n[... cut by Cellwall ...]\n"

# The key of a form, its MIME type, and its kind of content.
_FORMS = (
    ("html", "text/html", "text"),
    ("markdown", "text/markdown", "text"),
    ("svg", "image/svg+xml", "text"),
    ("png", "image/png", "binary"),
    ("jpeg", "image/jpeg", "binary"),
    ("pdf", "application/pdf", "binary"),
    ("latex", "text/latex", "text"),
    ("json", "application/json", "json"),
    ("javascript", "application/javascript", "text"),
)

# A metaclass can answer for its classes, so these come from `type` itself.
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_name = type.__dict__["__name__"].__get__


def describe(value: object) -> dict[str, object]:
    """The forms of a value: `text` always, others if the value has them."""
    forms: dict[str, object] = {"text": _repr(value)}
    if issubclass(type(value), type):
        return forms  # a class has the methods of its instances, but no instance to show
    answer = _call(value, "_repr_mimebundle_", include=None, exclude=None)
    pairs = dict.items(answer) if issubclass(type(answer), dict) else ()
    bundle = {key: data for key, data in pairs if type(key) is str}  # others may not compare
    for key, mime, holds in _FORMS:
        data = bundle.get(mime)
        if data is None:
            data = _call(value, f"_repr_{key}_")
        form = None if data is None else _attempt(_form, data, holds)
        if form is not None:
            forms[key] = form
    forms.update(_attempt(_table, value) or {})
    return forms


def plain(value: object) -> tuple[bool, object]:
    """Whether a value has a JSON form, and that form."""
    try:
        return True, _JsonWalk().plain(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # iterating and asking run the code's own methods
        return False, None


_strings_left = [MAX_STRINGS]
_cut = [False]


def renew() -> None:
    """Reset the budget for another run."""
    _strings_left[0] = MAX_STRINGS
    _cut[0] = False


def was_cut() -> bool:
    """Whether part of this run's result was left out; the outcome says so."""
    return _cut[0]


def _take_strings(count: int) -> bool:
    """Whether the budget of the run allows this many strings; otherwise only text is shown."""
    _strings_left[0] -= count
    return _fits(0, _strings_left[0])


def _fits(size: int, most: int) -> bool:
    """Whether `size` is within the bound; an excess is noted for `was_cut`."""
    _cut[0] = _cut[0] or size > most
    return size <= most


def prepare_plots() -> None:
    """Before the code runs: draw plots in memory, and give matplotlib a cache directory."""
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", "/tmp/.matplotlib")


def figures(read_chart: Callable[[Any], object]) -> list[dict[str, object]]:
    """Show and close every open figure: each is shown once, by the run that drew it.

    `read_chart` reads the data of a figure; its result, if any, must have a JSON form.
    """
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    shown: list[dict[str, object]] = []
    left = MAX_FIGURES_BYTES
    for number in _attempt(lambda: list(pyplot.get_fignums())) or ():
        figure = _attempt(pyplot.figure, number)
        forms: dict[str, object] = {"text": _repr(figure)}
        for key, picture in (_attempt(_pictures, figure) or {}).items():
            if _fits(len(picture), left):
                left -= len(picture)
                forms[key] = picture
        chart = _attempt(read_chart, figure)  # after the pictures: drawing sets the ticks
        form = None if chart is None else _attempt(_form, chart, "json")
        if form is not None and _fits(size := len(repr(form)), left):
            left -= size
            forms["chart"] = form
        shown.append(forms)
        _attempt(pyplot.close, figure)
    _attempt(pyplot.close, "all")  # also figures whose number could not be read
    return shown


def clean_traceback(error: BaseException, code_files: dict[str, str]) -> dict[str, str]:
    """Type, message and traceback as Python prints it, without the frames of the runner."""
    import linecache  # see above

    for path, source in code_files.items():
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    kind = _name(type(error))
    text = _attempt(str, error)
    message = "<the error message cannot be read>" if text is None else _clip(text)
    formatted = _attempt(_format, error)
    return {
        "type": kind,
        "message": message,
        "traceback": _ends(f"{kind}: {message}\n" if formatted is None else formatted),
    }


def _format(error: BaseException) -> str:
    import traceback  # see above

    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting = [whole]
    seen: set[int] = set()
    while waiting:  # not recursive: a chain may be longer than the stack is deep
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(RUNNER)]
        linked = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
        waiting += [other for other in linked if other is not None]
    return "".join(whole.format())


def _attempt(function: Callable[..., Any], *arguments: Any) -> Any:  # anything at all
    """The result, or None: an exception in a method of the code does not fail the run."""
    try:
        return function(*arguments)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # see above
        return None


def _repr(value: object) -> str:
    text = _attempt(repr, value)
    return f"<{_name(type(value))} object, its repr fails>" if text is None else _clip(text)


def _clip(text: str) -> str:
    # By methods of `str`: a subclass may override them. Lone surrogates are replaced.
    data = str.encode(str.__getitem__(text, slice(MAX_TEXT_BYTES)), "utf-8", "replace")
    _fits(max(str.__len__(text), len(data)), MAX_TEXT_BYTES)
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _ends(text: str) -> str:
    """The beginning and end of a long text: the last line of a traceback says most."""
    data = text.encode("utf-8", "replace")
    if _fits(len(data), MAX_TEXT_BYTES):
        return data.decode()
    half = (MAX_TEXT_BYTES - len(_CUT)) // 2
    return _CUT.join([end.decode("utf-8", "ignore") for end in (data[:half], data[-half:])])


def _call(value: object, name: str, **arguments: object) -> Any:  # any object
    """The result of a method that the type defines, without metadata; instances may lie."""

    def call() -> object:
        has = any(name in _namespace(kind) for kind in _mro(type(value)))
        return getattr(value, name)(**arguments) if has else None

    answer = _attempt(call)
    return answer[0] if type(answer) is tuple and len(answer) == 2 else answer


def _form(data: Any, holds: str) -> object:  # any return value of a method
    """The data as a form of this kind, or None."""
    is_text = issubclass(type(data), str)
    if holds == "json":
        import json  # see above

        ok, form = plain(json.loads(data) if is_text else data)
        return form if ok and _fits(len(json.dumps(form)), MAX_FORM_BYTES) else None
    if holds == "binary":
        import base64  # see above

        if is_text:  # pictures may come as base64 already; anything else raises
            data = base64.b64decode("".join(str.split(data)), validate=True)
        fits = _fits(memoryview(data).nbytes * 4 // 3, MAX_FORM_BYTES)
        return base64.b64encode(data).decode("ascii") if fits else None
    text = str.encode(data, "utf-8", "replace")
    return text.decode() if _fits(len(text), MAX_FORM_BYTES) else None


class _NotPlain(Exception):
    """The value has no JSON form within the bounds."""


class _JsonWalk:
    """Walks through a value by methods of the base types, up to a number of entries."""

    def __init__(self) -> None:
        self._left = MAX_ENTRIES
        self._bytes_left = MAX_FORM_BYTES
        numpy: Any = sys.modules.get("numpy")
        self._scalar = _attempt(lambda: numpy.generic) or _NotPlain
        self._array = _attempt(lambda: numpy.ndarray) or _NotPlain

    def plain(self, value: Any, depth: int = 0) -> object:  # anything at all
        self._left -= 1
        if not _fits(depth, MAX_DEPTH) or not _fits(0, self._left):
            raise _NotPlain
        if issubclass(type(value), self._scalar):
            value = value.item()
        elif issubclass(type(value), self._array) and value.size <= MAX_ARRAY_ENTRIES:
            value = value.tolist()
        kind = type(value)
        if value is None or value is True or value is False:
            return value
        if issubclass(kind, str):
            return self._text(value)
        if issubclass(kind, dict):
            pairs = dict.items(value)
            return {self._text(key): self.plain(each, depth + 1) for key, each in pairs}
        if issubclass(kind, (list, tuple)):
            entries = (list if issubclass(kind, list) else tuple).__iter__(value)
            return [self.plain(each, depth + 1) for each in entries]
        return _number(value)

    def _text(self, value: str) -> str:
        text = str.__str__(value)  # raises for a key that is no text, such as 1
        self._bytes_left -= len(text)
        if not _fits(0, self._bytes_left) or not _take_strings(1):
            raise _NotPlain
        return text


def _number(value: Any) -> float:  # anything at all
    if issubclass(type(value), int) and _fits(int.bit_length(value), MAX_NUMBER_BITS):
        return int.__int__(value)
    if issubclass(type(value), float):
        number = float.__float__(value)
        if number - number == 0.0:  # JSON has neither NaN nor infinity
            return number
    raise _NotPlain


def _table(value: Any) -> dict[str, object] | None:  # anything at all
    """The rows of a pandas DataFrame or Series, with the index unless it is a plain range."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not issubclass(type(value), (pandas.DataFrame, pandas.Series)):
        return None
    import json  # see above

    frame = value.head(MAX_ROWS)
    if issubclass(type(value), pandas.Series):
        frame = frame.to_frame("value" if frame.name is None else frame.name)
    if not isinstance(frame.index, pandas.RangeIndex):
        frame = frame.reset_index(allow_duplicates=True)
    if not _fits(len(frame) * len(frame.columns), MAX_ENTRIES):
        return None
    # One key and perhaps one text for each cell; a wide table shows fewer rows.
    frame = frame.head(MAX_STRINGS // 2 // max(1, len(frame.columns)))
    if not _take_strings(len(frame) * len(frame.columns)):
        return None

    def cell(value: object) -> object:
        if _attempt(pandas.isna, value) is True:  # NaN, NaT, NA: three forms of a missing value
            return None
        ok, form = plain(value)
        return form if ok else _clip(str(value))

    names = _distinct(frame.columns)
    rows = frame.itertuples(index=False, name=None)
    records = [{name: cell(each) for name, each in zip(names, row)} for row in rows]  # noqa: B905  # Python 3.9 may be inside
    fits = _fits(len(json.dumps(records)), MAX_FORM_BYTES)
    return {"records": records, "rows_total": len(value)} if fits else None


def _distinct(labels: Iterable[object]) -> list[str]:
    """Column names as distinct texts, so that no column is lost."""
    names: dict[str, None] = {}
    for label in labels:
        name = text = _clip(str(label))
        while name in names:
            name = f"{text}.{len(names)}"
            text += "_"
        names[name] = None
    return list(names)


def _pictures(figure: Any) -> dict[str, str]:  # matplotlib is not imported here
    import io  # see above

    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", bbox_inches="tight")
    figure.savefig(svg, format="svg", bbox_inches="tight", metadata={"Date": None})
    forms = {"png": _form(png.getvalue(), "binary"), "svg": _form(svg.getvalue().decode(), "text")}
    return {key: str(form) for key, form in forms.items() if form is not None}
