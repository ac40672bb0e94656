"""Run as a program: adds users until it is killed, and prints each name that was acknowledged.

writing.py HOME URL
"""

from __future__ import annotations

import os
import sys

import anyio

from cellwall.storage.engine import StorageSettings
from cellwall.storage.store import open_store
from unit.storage import records


async def write(settings: StorageSettings) -> None:
    async def one(task: int) -> None:
        for number in range(100_000):
            name = f"user-{task}-{number}"
            await store.add_user(records.user(name))
            os.write(1, f"{name}\n".encode())

    async with open_store(settings) as store, anyio.create_task_group() as group:
        for task in range(3):
            group.start_soon(one, task)


if __name__ == "__main__":
    anyio.run(write, StorageSettings(home=sys.argv[1], url=sys.argv[2]))
