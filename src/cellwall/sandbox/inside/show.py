"""What a value, a figure or an error looks like to whoever asked for the code (LANG-2).

It runs inside the cell with the code's own rights, so nothing it returns is trusted outside. It
must not fall over either: values are the code's, and any method of theirs may raise, lie about its
class or answer to every name. So types are read by `type()`, methods are looked for on the type,
and whatever belongs to the value is called by `_attempt`. Imports are late: most code shows
nothing, and the system's Python inside may be older than the one Cellwall runs on.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

RUNNER = ("<cellwall>", "/.cellwall/")  # how the files of the runner itself are called
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

# The key of a form, its MIME type, and what it holds.
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

# A metaclass can answer for its classes, so these are asked of `type` itself.
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_name = type.__dict__["__name__"].__get__


def describe(value: object) -> dict[str, object]:
    """The forms of a value: `text` always, the others where it has them."""
    forms: dict[str, object] = {"text": _repr(value)}
    if issubclass(type(value), type):
        return forms  # a class has the methods of its instances, but no instance to show
    said = _call(value, "_repr_mimebundle_", include=None, exclude=None)
    pairs = dict.items(said) if issubclass(type(said), dict) else ()
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
        return True, _Walk().plain(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # iterating and asking run the code's own methods
        return False, None


_strings_left = [MAX_STRINGS]
_cut = [False]


def renew() -> None:
    """Another run: it may tell as much as the one before."""
    _strings_left[0] = MAX_STRINGS
    _cut[0] = False


def was_cut() -> bool:
    """Whether something of this run is larger than is told; the outcome says so."""
    return _cut[0]


def _take_strings(count: int) -> bool:
    """What does not fit into the run's part is told as text alone."""
    _strings_left[0] -= count
    return _fits(0, _strings_left[0])


def _fits(size: int, most: int) -> bool:
    """Whether it is no more than that; noted where it is."""
    _cut[0] = _cut[0] or size > most
    return size <= most


def prepare_plots() -> None:
    """Before the code runs: plots are drawn in memory, and matplotlib's cache has a place."""
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", "/tmp/.matplotlib")


def figures() -> list[dict[str, object]]:
    """Every figure that is open, then closed: a figure is shown once, by the run that drew it."""
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
        shown.append(forms)
        _attempt(pyplot.close, figure)
    _attempt(pyplot.close, "all")  # also those that would not say their number
    return shown


def clean_traceback(error: BaseException, code_files: dict[str, str]) -> dict[str, str]:
    """Type, message and traceback as Python prints it, without the frames of the runner."""
    import linecache  # see above

    for path, source in code_files.items():
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    kind = _name(type(error))
    said = _attempt(str, error)
    message = "<its text cannot be told>" if said is None else _clip(said)
    told = _attempt(_format, error)
    return {
        "type": kind,
        "message": message,
        "traceback": _ends(f"{kind}: {message}\n" if told is None else told),
    }


def _format(error: BaseException) -> str:
    import traceback  # see above

    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting = [whole]
    seen: set[int] = set()
    while waiting:  # not by recursion: a chain may be longer than the stack is deep
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(RUNNER)]
        linked = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
        waiting += [other for other in linked if other is not None]
    return "".join(whole.format())


def _attempt(function: Callable[..., Any], *arguments: Any) -> Any:  # anything at all
    """The result, or None: what the code's own methods raise is no failure of the run."""
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
    # By way of `str`: a subclass may have methods of its own. Lone surrogates are no text.
    data = str.encode(str.__getitem__(text, slice(MAX_TEXT_BYTES)), "utf-8", "replace")
    _fits(max(str.__len__(text), len(data)), MAX_TEXT_BYTES)
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _ends(text: str) -> str:
    """A long text's beginning and end: of a traceback the last line says most."""
    data = text.encode("utf-8", "replace")
    if _fits(len(data), MAX_TEXT_BYTES):
        return data.decode()
    half = (MAX_TEXT_BYTES - len(_CUT)) // 2
    return _CUT.join([end.decode("utf-8", "ignore") for end in (data[:half], data[-half:])])


def _call(value: object, name: str, **arguments: object) -> Any:  # whatever it says
    """What a method says, without metadata, if the type has it: instances may claim anything."""

    def say() -> object:
        has = any(name in _namespace(kind) for kind in _mro(type(value)))
        return getattr(value, name)(**arguments) if has else None

    said = _attempt(say)
    return said[0] if type(said) is tuple and len(said) == 2 else said


def _form(data: Any, holds: str) -> object:  # whatever a method said
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


class _Walk:
    """One way through a value, by the base types' methods; it ends after so many entries."""

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
        text = str.__str__(value)  # raises for what is no text, such as the key 1
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
    """The rows of a pandas DataFrame or Series, with the index where it says something."""
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
    # A key and perhaps a text for each cell; of a wide table fewer rows are shown.
    frame = frame.head(MAX_STRINGS // 2 // max(1, len(frame.columns)))
    if not _take_strings(len(frame) * len(frame.columns)):
        return None

    def cell(value: object) -> object:
        if _attempt(pandas.isna, value) is True:  # NaN, NaT, NA: three ways to say nothing
            return None
        ok, form = plain(value)
        return form if ok else _clip(str(value))

    names = _distinct(frame.columns)
    rows = frame.itertuples(index=False, name=None)
    records = [{name: cell(each) for name, each in zip(names, row)} for row in rows]  # noqa: B905  # Python 3.9 may be inside
    fits = _fits(len(json.dumps(records)), MAX_FORM_BYTES)
    return {"records": records, "rows_total": len(value)} if fits else None


def _distinct(labels: Iterable[object]) -> list[str]:
    """Column names as texts of which no two are the same, so that no column is lost."""
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
