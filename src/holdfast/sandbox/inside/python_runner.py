"""Runs one piece of Python and tells the value of its last expression.

It runs inside the cell with the code's own rights, so nothing it says is trusted: it writes one
JSON object to descriptor 3, which the supervisor reads as bounded, plain data. Imports are late:
most code needs neither `json` nor `traceback`, and each costs more than the code itself.
"""

from __future__ import annotations

import _ast
import os
import sys

RESULT_FD = 3
CODE = "/code/main.py"
MOST_TEXT = 65_536
ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST


def tell(report: dict[str, object]) -> None:
    """Write the report; code that closed the descriptor simply has no value."""
    import json  # noqa: PLC0415

    try:
        json.dumps(report.get("value"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        report["value"] = None  # the text form is sent in any case
    try:
        with os.fdopen(RESULT_FD, "w", encoding="ascii") as channel:
            channel.write(json.dumps(report))
    except (OSError, ValueError, RecursionError):
        pass


def show_error(error: BaseException, source: bytes) -> dict[str, str]:
    """A traceback of the code's own lines: the frames of this runner say nothing to anybody."""
    import linecache  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[CODE] = (len(source), None, lines, CODE)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != CODE:
        frames = frames.tb_next
    error = error.with_traceback(frames)
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    return {
        "type": type(error).__name__,
        "message": str(error)[:MOST_TEXT],
        "traceback": text[:MOST_TEXT],
    }


def run(source: bytes, report: dict[str, object]) -> None:
    """Execute all, and evaluate the last statement if it is an expression."""
    tree: _ast.Module = compile(source, CODE, "exec", ONLY_TREE, dont_inherit=True)
    last = None
    if tree.body and isinstance(final := tree.body[-1], _ast.Expr):
        last = _ast.Expression(final.value)
        tree.body.pop()
    module = type(sys)("__main__")
    module.__file__ = CODE
    sys.modules["__main__"] = module
    sys.argv = [CODE]
    body = compile(tree, CODE, "exec", dont_inherit=True)
    exec(body, module.__dict__)  # noqa: S102  # that is its task, inside
    if last is not None:
        expression = compile(last, CODE, "eval", dont_inherit=True)
        value = eval(expression, module.__dict__)  # noqa: S307  # as above
        if value is not None:
            report["value"] = value
            report["text"] = repr(value)[:MOST_TEXT]


def main() -> None:
    """Run the code, tell its value, end with its exit code."""
    os.set_inheritable(RESULT_FD, False)
    with open(CODE, "rb") as file:
        source = file.read()
    sys.path[0:0] = [os.getcwd()]
    report: dict[str, object] = {}
    stop: SystemExit | None = None
    try:
        run(source, report)
    except SystemExit as wanted:
        stop = wanted
    except BaseException as error:  # noqa: BLE001  # the code's failure is a result
        report["error"] = show_error(error, source)
        stop = SystemExit(1)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass
    if report:
        tell(report)
    if stop is not None:
        raise stop


main()
