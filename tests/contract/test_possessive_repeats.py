"""Before Python 3.11.5 (Debian 12 has 3.11.2), `re` does not go back to where an iteration of a
possessive repeat began when that iteration fails (gh-106052): what the failed one had passed counts
as matched. A repeat of one character is not concerned. Of a group it is, unless each iteration that
fails does so before `re` has noted a place behind its beginning.
"""

from __future__ import annotations

import json
import re
import re._constants as codes
import re._parser as parser
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cellwall.audit.segments import _NOTE as SIGNED_NOTE
from cellwall.guard.channels.addresses import LIVE
from cellwall.guard.channels.markdown import LINK
from cellwall.policy.positions import _STRING as JSON_STRING

LIST_PATTERNS = """
import importlib, json, pkgutil, re, sys
import cellwall
found, compile_ = {}, re._compile
def noted(pattern, flags):
    made, frame = compile_(pattern, flags), sys._getframe(1)
    while frame.f_code.co_filename.endswith(("/re/__init__.py", "<string>")) and frame.f_back:
        frame = frame.f_back
    if "/cellwall/" in frame.f_code.co_filename:
        is_bytes = isinstance(made.pattern, bytes)
        text = made.pattern.decode("latin-1") if is_bytes else made.pattern
        found[text, is_bytes, made.flags] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return made
re._compile = noted
for module in pkgutil.walk_packages(cellwall.__path__, "cellwall."):
    if not module.name.startswith("cellwall.sandbox.inside") and "__main__" not in module.name:
        try:
            importlib.import_module(module.name)
        except Exception:  # an extra is missing, or it is no module
            pass
print(json.dumps([[*key, place] for key, place in found.items()]))
"""
ONE = {codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY, codes.AT}
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


def inner_of(operation: Any, value: Any) -> Iterable[Any]:
    if operation in REPEATS:
        return [value[2]]
    if operation is codes.SUBPATTERN:
        return [value[3]]
    if operation is codes.BRANCH:
        return value[1]
    if operation in {codes.ASSERT, codes.ASSERT_NOT}:
        return [value[1]]
    return [value] if operation is codes.ATOMIC_GROUP else []


def is_of_one(tree: Any) -> bool:
    return len(tree) == 1 and tree[0][0] in ONE


def fails_at_its_beginning(tree: Any) -> bool:
    """Whether `re` notes no place behind the beginning of what fails."""
    is_behind = has_noted = False
    for operation, value in tree:
        if has_noted and not (operation in REPEATS and value[0] == 0):
            return False
        if operation in ONE:
            is_behind = True
        elif operation in REPEATS and is_of_one(value[2]):
            if is_behind and value[0] > 0:
                return False
            # A possessive one at the beginning notes the beginning alone.
            has_noted = is_behind or operation is not codes.POSSESSIVE_REPEAT
            is_behind = True
        elif operation is codes.BRANCH and len(tree) == 1:
            return all(map(fails_at_its_beginning, value[1]))
        else:
            return False
    return True


def doubtful(tree: Any) -> Iterator[str]:
    for operation, value in tree:
        if operation is codes.POSSESSIVE_REPEAT and not (
            is_of_one(value[2]) or fails_at_its_beginning(value[2])
        ):
            yield str(value[2])
        for inner in inner_of(operation, value):
            yield from doubtful(inner)


def parsed(pattern: str | bytes, flags: int) -> Any:
    return parser.parse(pattern, flags & ~(re.UNICODE if isinstance(pattern, bytes) else 0))


@pytest.mark.long  # compiles every pattern of the product
def test_no_possessive_repeat_depends_on_an_iteration_that_fails_late() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_PATTERNS], capture_output=True, check=True, text=True
    )
    patterns = json.loads(done.stdout)
    assert len(patterns) > 500
    found = [
        (place, text)
        for text, is_bytes, flags, place in patterns
        if any(doubtful(parsed(text.encode("latin-1") if is_bytes else text, flags)))
    ]
    assert found == []


@pytest.mark.parametrize(
    "pattern",
    [r"(?:a|bc{2})*+", r"(?:\.\w++)++", r"(?::\d{1,5})?+", r"(?:(?!xy).)*+", r"(?:a?b)*+"],
)
def test_the_control_is_doubtful(pattern: str) -> None:
    assert any(doubtful(parsed(pattern, 0)))


@pytest.mark.parametrize(
    "pattern", [r'"(?:[^"\\]++|\\.)*+"', r"(?:[/?#][^\s<>]*)?+", r"[a-z]++", r"(?:\\.[^\"]*+)*+"]
)
def test_the_others_are_not(pattern: str) -> None:
    assert not any(doubtful(parsed(pattern, 0)))


def test_a_json_string_with_an_unfinished_escape_is_none() -> None:
    assert JSON_STRING.match(r'"a\u": "b"') is None
    assert JSON_STRING.match(r'"a\u0041": "b"') is not None


def test_a_signature_without_a_name_is_none() -> None:
    head = b"log\n1\n" + b"A" * 43 + b"=\n\n"
    assert SIGNED_NOTE.match(head + b"\xe2\x80\x94 a b\n\xe2\x80\x94 \n\n") is None
    assert SIGNED_NOTE.match(head + b"\xe2\x80\x94 a b\n\n") is not None


def test_addresses_and_links_end_where_they_end() -> None:
    assert [found.group() for found in LIVE.finditer("a.b: c.d:80/x e.f.")] == [
        "a.b",
        "c.d:80/x",
        "e.f.",
    ]
    assert LINK.search("[](   (\n) )") is None
    assert LINK.search("[a](b(c) 'd')") is not None
