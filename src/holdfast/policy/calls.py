"""What an agent asks for, in the words of its tools. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.types import Json


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: `Bash` with `{"command": …}`, `Read` with `{"file_path": …}`, any other tool."""

    tool: str
    input: Mapping[str, Json] = field(default_factory=dict)
    cwd: str = "/"
    """What relative paths in it are relative to; absolute itself."""
    home: str = "/"
    """What `~` stands for."""
