"""The operations of the file API, on whatever tree holds the path (FS-7)."""

# ruff: noqa: PLC0415  # late import: few programs move archives, and tar loads slowly

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation, StreamedFile, Transfer
from cellwall.core.limits import Limits
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits

WRITING = frozenset({"write", "make_dir", "move", "remove", "upload"})


@dataclass(frozen=True, slots=True)
class FileRules:
    """The part of the configuration that file operations need."""

    blocked_extensions: tuple[str, ...] = ()
    max_read_bytes: int = 64 * 1024 * 1024


def perform_operation(
    tree: FileTree, operation: FileOperation, *, limits: Limits, rules: FileRules
) -> object:
    """The result of every operation but `watch` and `diff`."""
    blocked = rules.blocked_extensions
    result: object = None
    match operation.name:
        case "read" if operation.sink is not None:
            most = max(rules.max_read_bytes, limits.file_size_bytes)
            result = tree.read_into(operation.path, operation.sink, max_bytes=most)
        case "read":
            result = tree.read(operation.path, max_bytes=rules.max_read_bytes)
        case "write" if operation.source is not None:
            result = tree.write_from(
                operation.path,
                operation.source,
                StreamedFile(operation.source_bytes, operation.source_sha256),
                WriteLimits.of(limits, blocked),
            )
        case "write":
            tree.write(operation.path, operation.content, WriteLimits.of(limits, blocked))
        case "list":
            result = tree.list(operation.path)
        case "stat":
            result = tree.stat(operation.path)
        case "exists":
            result = tree.exists(operation.path)
        case "make_dir":
            tree.make_dir(operation.path, max_files=limits.file_count)
        case "move":
            tree.move(operation.path, operation.target, blocked_extensions=blocked)
        case "remove":
            tree.remove(operation.path, recursive=True)
        case "upload" | "download":
            result = _transfer(tree, operation, WriteLimits.of(limits, blocked))
    return result


def _transfer(tree: FileTree, operation: FileOperation, limits: WriteLimits) -> Transfer:
    from cellwall.sandbox.files.tar_transfer import pack, unpack

    if operation.name == "upload" and operation.source is not None:
        return unpack(tree, operation.path, operation.source, limits=limits)
    if operation.name == "download" and operation.sink is not None:
        skip_links = operation.skip_links
        return pack(tree, operation.path, operation.sink, limits=limits, skip_links=skip_links)
    raise BadInput("an upload needs a source, a download needs a sink")
