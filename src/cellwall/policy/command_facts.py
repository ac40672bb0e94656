"""Results of pure functions of a command, kept with the parsed command. Pure.

The commands of a text that was parsed before are the same objects. Their facts live as long as the
parse, so that `parsing.bounded_cache` bounds both by the size of the texts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from cellwall.parsing.shell.words import Command

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def remembered(
    function: Callable[Concatenate[Command, Rest], Result],
) -> Callable[Concatenate[Command, Rest], Result]:
    """Decorates a pure function of a command whose result is immutable. The result is found again
    where the command and all further arguments are the same objects: a comparison of their values
    would take longer than most of these functions."""

    @wraps(function)
    def found(command: Command, /, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        kept: Any = command.facts.get(function)
        if kept is not None and not named and all(map(operator.is_, kept[0], rest)):
            return kept[1]  # type: ignore[no-any-return]  # of this function
        result = function(command, *rest, **named)
        command.facts[function] = rest, result
        return result

    return found
