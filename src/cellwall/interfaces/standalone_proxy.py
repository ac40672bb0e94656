"""The standalone proxy: one action for each client, from the proxy's start to its end (NET-8)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from cellwall.core.outcomes import Outcome
from cellwall.core.ports import ApproverPort
from cellwall.core.types import Action, Principal, ServeClient
from cellwall.runtime.app import App
from cellwall.runtime.proxy_clients import (
    ClientAccess,
    ClientToken,
    ListenAddress,
    client_access,
    client_folders,
)

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """One client, as the user has named it."""

    name: str
    domains: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    tokenless_port: int | None = None
    """A loopback port for a program that cannot send a token; 0 takes a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningProxy:
    """The proxy once all clients can connect."""

    address: str
    clients: tuple[ClientAccess, ...]
    tokenless_ports: Mapping[str, int]


class StandaloneProxy:
    """Serves until a signal, a timeout, or the end of one of its actions."""

    def __init__(
        self,
        app: App,
        who: Principal,
        plans: Sequence[ClientPlan],
        *,
        policy: tuple[str, ...] = (),
        seen_at: str | None = None,
    ) -> None:
        """`seen_at`: the path at which clients see the folder with their authority."""
        self._app = app
        self._who = who
        self._plans = plans
        self._policy = policy
        self._seen_at = seen_at
        self._stop = anyio.Event()
        self.is_ready = False
        """Whether all clients could connect."""
        self.signal: int | None = None
        """The signal that has ended the proxy."""
        self._outcomes: dict[str, Outcome] = {}

    async def run(
        self,
        address: ListenAddress,
        *,
        ask: ApproverPort | None,
        on_ready: Callable[[ListeningProxy], None],
        timeout_s: float | None = None,
    ) -> Mapping[str, Outcome]:
        """Serve, and return the outcome of each client; a refused client refuses all."""
        try:
            return await self._run(address, ask, on_ready, timeout_s)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _run(
        self,
        address: ListenAddress,
        ask: ApproverPort | None,
        on_ready: Callable[[ListeningProxy], None],
        timeout_s: float | None,
    ) -> Mapping[str, Outcome]:
        names = [plan.name for plan in self._plans]
        with client_folders(self._app.store.home, names) as folders:
            bound, ports = self._listen(address)
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._watch_signals, watching.cancel_scope)
                async with anyio.create_task_group() as serving:
                    clients: list[ClientAccess] = []
                    for plan in self._plans:
                        place = folders[plan.name]
                        port = ports.get(plan.name)
                        access = await serving.start(self._serve, plan, bound, port, place, ask)
                        if access is None:  # refused: the outcome says why
                            break
                        clients.append(access)
                    else:
                        self.is_ready = True
                        on_ready(
                            ListeningProxy(
                                address=str(bound), clients=tuple(clients), tokenless_ports=ports
                            )
                        )
                        with anyio.move_on_after(timeout_s):
                            await self._stop.wait()
                    self._stop.set()
                watching.cancel_scope.cancel()
        return self._outcomes

    def _listen(self, address: ListenAddress) -> tuple[ListenAddress, Mapping[str, int]]:
        listener = address.listen()
        tokenless = {
            plan.name: ListenAddress(_LOOPBACK, plan.tokenless_port).listen()
            for plan in self._plans
            if plan.tokenless_port is not None
        }
        ports = {name: int(sock.getsockname()[1]) for name, sock in tokenless.items()}
        bound = ListenAddress(address.host, int(listener.getsockname()[1]))
        self._app.egress.open_gateway(self._who, listener, tokenless=tokenless)
        return bound, ports

    async def _watch_signals(self, scope: anyio.CancelScope) -> None:
        """The first signal ends all clients in order; before that, or a second one, at once."""
        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as received:
            async for number in received:
                self.signal = number
                if not self.is_ready or self._stop.is_set():
                    scope.cancel()
                self._stop.set()

    async def _serve(
        self,
        plan: ClientPlan,
        address: ListenAddress,
        tokenless_port: int | None,
        folder: str,
        ask: ApproverPort | None,
        *,
        task_status: anyio.abc.TaskStatus[ClientAccess | None],
    ) -> None:
        token, is_open = ClientToken(), False

        async def hold(files: Mapping[str, bytes], env: Mapping[str, str]) -> None:
            nonlocal is_open
            url = f"http://{plan.name}:{token.text}@{address}"
            write = partial(client_access, url=url, folder=folder, seen_at=self._seen_at)
            access = await anyio.to_thread.run_sync(write, plan.name, files, env)
            is_open = True
            task_status.started(access)
            await self._stop.wait()

        action = Action(
            principal=self._who,
            operation=ServeClient(
                plan.name,
                token.sha256,
                hold,
                address=str(address),
                tokenless_address=f"{_LOOPBACK}:{tokenless_port}" if tokenless_port else "",
            ),
            allow_domains=plan.domains,
            secrets=plan.secrets,
            policy=self._policy,
        )
        self._outcomes[plan.name] = await self._app.runtime.perform(action, ask=ask)
        if not is_open:
            task_status.started(None)
        self._stop.set()


def first_error(error: BaseException) -> BaseException:
    """An error of a task group as the callers know it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
