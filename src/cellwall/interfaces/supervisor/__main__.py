"""`python -m cellwall.interfaces.supervisor`: the program of `cellwall supervisor start`."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from logging.handlers import RotatingFileHandler

import anyio

from cellwall.interfaces.supervisor.server import Supervisor, listen
from cellwall.runtime.home import state_home


async def _serve(supervisor: Supervisor, listener: object) -> None:
    async with anyio.create_task_group() as tasks:

        async def watch_signals() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
                async for _number in received:
                    supervisor.stop()

        tasks.start_soon(watch_signals)
        await supervisor.serve(listener)  # type: ignore[arg-type]  # a socket
        tasks.cancel_scope.cancel()


def main() -> int:
    """Serve until stopped."""
    home = state_home(os.environ)
    os.umask(0o077)
    # Each live cell needs a few descriptors.
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(
        handlers=[
            RotatingFileHandler(
                os.path.join(home, "supervisor.log"), maxBytes=1 << 20, backupCount=1
            )
        ],
        format="%(asctime)s %(levelname)s %(message)s",
    )
    listening = listen(home)
    if listening is None:
        return 0  # another supervisor serves this folder
    anyio.run(_serve, Supervisor(home), listening[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
