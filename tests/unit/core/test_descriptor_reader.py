"""A descriptor that one task reads: nothing is lost, read twice or read ahead."""

from __future__ import annotations

import asyncio
import fcntl
import os
import termios
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cellwall.core.descriptor_reader import DescriptorReader

pytestmark = pytest.mark.requirement("INT-1")


class Pipe:
    """Its reading end blocks, as standard input does."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.reader = DescriptorReader(self.reading)

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)

    def unread_bytes(self) -> int:
        count = fcntl.ioctl(self.reading, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, "little")


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    for descriptor in (made.reading, made.writing):
        if descriptor >= 0:
            os.close(descriptor)


def test_each_chunk_is_read_once_and_no_read_blocks_the_loop(pipe: Pipe) -> None:
    async def main() -> list[bytes]:
        found = []
        for number in range(50):
            pipe.write(b"%d" % number)
            found.append(await pipe.reader.read())
            with anyio.move_on_after(0):  # a blocking read here would never end
                await pipe.reader.read()
        pipe.reader.close()
        return found

    assert anyio.run(main) == [b"%d" % number for number in range(50)]


def test_nothing_is_read_ahead(pipe: Pipe) -> None:
    async def main() -> None:
        pipe.write(b"first")
        assert await pipe.reader.read() == b"first"
        pipe.write(b"second")
        await anyio.wait_all_tasks_blocked()
        assert pipe.unread_bytes() == len(b"second")
        assert await pipe.reader.read() == b"second"
        pipe.reader.close()

    anyio.run(main)


def test_cancelled_read_leaves_its_bytes_to_the_next(pipe: Pipe) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(pipe.reader.read())
        await anyio.wait_all_tasks_blocked()
        pipe.write(b"kept")
        pipe.reader._read_now()  # the loop's callback, before the task goes on
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pipe.reader.read() == b"kept"
        pipe.reader.close()

    anyio.run(main)


def test_end_and_closed_watch(pipe: Pipe) -> None:
    async def main() -> None:
        os.close(pipe.writing)
        pipe.writing = -1
        assert await pipe.reader.read() == b""
        pipe.reader.close()
        pipe.reader.close()

    anyio.run(main)


def test_regular_file_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with (tmp_path / "file").open("wb+") as file, pytest.raises(PermissionError):
            await DescriptorReader(file.fileno()).read()

    anyio.run(main)
