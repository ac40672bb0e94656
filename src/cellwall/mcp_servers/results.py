"""The result of another server's tool as the result of a run. Everything in it is untrusted.

Text and structured content become one text, which the guard scans, redacts and marks. Images stay,
checked by their magic bytes where they are shown. Audio, blobs and metadata are left out: nothing
here can look into them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.types import Json

_MAX_BLOCKS = 256
_FAILED = 1
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg"}


def result_of(answer: CallToolResult) -> RunResult:
    """An error of the tool is a failed run: its text goes the same way."""
    texts: list[str] = []
    images: list[Json] = []
    left_out: list[str] = []
    for block in answer.content[:_MAX_BLOCKS]:
        match block:
            case TextContent():
                texts.append(block.text)
            case ImageContent() if block.mime_type in _IMAGES:
                images.append({_IMAGES[block.mime_type]: block.data})
            case EmbeddedResource(resource=TextResourceContents() as resource):
                texts.append(f"{resource.uri}\n{resource.text}")
            case ResourceLink():
                texts.append(f"{block.name}: {block.uri}")
            case ImageContent() | AudioContent() | EmbeddedResource():
                left_out.append(block.type)
    if len(answer.content) > _MAX_BLOCKS:
        left_out.append(f"everything after {_MAX_BLOCKS} blocks")
    structured = answer.structured_content
    if structured is not None and not any(_is_same(text, structured) for text in texts):
        texts.append(json.dumps(structured, ensure_ascii=False, default=str))
    return RunResult(
        exit_code=_FAILED if answer.is_error else None,
        text="\n".join(texts) if texts else None,
        results=tuple(images),
        findings=tuple(_notes(left_out)),
        path="",
    )


def error_result(message: str) -> RunResult:
    """A protocol error of the server, whose message is untrusted as well."""
    return RunResult(exit_code=_FAILED, text=message, path="")


def _is_same(text: str, structured: object) -> bool:
    """Servers repeat structured content as text, for clients that read only text."""
    if structured == {"result": text}:  # how SDKs wrap a result that is no object
        return True
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        return bool(json.loads(text) == structured)
    except (ValueError, RecursionError):
        return False


def _notes(left_out: list[str]) -> Iterator[Finding]:
    if left_out:
        kinds = ", ".join(dict.fromkeys(left_out))
        yield Finding("left-out", "low", f"left out of the result: {kinds}", where="content")
