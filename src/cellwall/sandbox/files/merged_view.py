"""The merged view of copy-on-write sessions, for the file API (FS-2, FS-7).

A view is a mount of the session's overlay that hangs nowhere: the file API works through overlayfs,
as the code inside does, and both see each other's changes at once. Writing to the upper layer of a
mounted overlay from outside is undefined, and so are two overlays on one upper layer. So a session
has one overlay at a time:

  (1) while its cell lives, the view is a second mount of the cell's own overlay;
  (2) without a cell, the first operation has one mounted, which is kept for those after it;
  (3) before a new cell is made, the operations under way end and the old view is closed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.types import Action, WorkspaceMount
from cellwall.sandbox.files.descriptors import held
from cellwall.sandbox.files.root import Root

_WAIT_S = 30.0
"""For transfers under way before a cell is made, and for a cell that is being made."""


class Follower(Protocol):
    """Something that uses a view for longer than one operation, and can go over to the next."""

    def let_go(self) -> None: ...

    def follow(self, root: Root) -> None: ...

    def stop(self) -> None: ...


RootOf = Callable[[int], Root]
"""A root on a view; owns the descriptor."""
OpenView = Callable[[Action, WorkspaceMount], int]


@dataclass(slots=True)
class _View:
    """Of one session."""

    descriptor: int = -1
    users: int = 0
    is_changing: bool = False
    is_ended: bool = False
    followers: weakref.WeakKeyDictionary[Follower, RootOf] = field(
        default_factory=weakref.WeakKeyDictionary
    )


class MergedViews:
    """Of all sessions. May be used by many threads at once."""

    def __init__(self, open_view: OpenView) -> None:
        self._open_view = open_view
        self._views: dict[str, _View] = {}
        self._changed = threading.Condition()

    @contextmanager
    def use(self, session_id: str, action: Action, mount: WorkspaceMount) -> Iterator[int]:
        """A descriptor of the view, for one operation."""
        view = self._take_up(session_id, action, mount)
        try:
            with held(os.dup(view.descriptor)) as descriptor:
                yield descriptor
        finally:
            with self._changed:
                view.users -= 1
                if view.is_ended and view.users == 0:
                    _close(view)
                self._changed.notify_all()

    def _take_up(self, session_id: str, action: Action, mount: WorkspaceMount) -> _View:
        with self._changed:
            view = self._views.setdefault(session_id, _View())
            self._wait(lambda: not view.is_changing, "its sandbox is being started")
            if view.is_ended:
                raise _ended()
            if view.descriptor >= 0:
                view.users += 1
                return view
            view.is_changing = True
        descriptor = -1
        try:
            descriptor = self._open_view(action, mount)  # (2)
        finally:
            self._install(view, descriptor, users=1 if descriptor >= 0 else 0)
        return view

    @contextmanager
    def replacing(self, session_id: str) -> Iterator[Callable[[int], None]]:
        """(3) While a cell is made; what is yielded takes the cell's own view."""
        with self._changed:
            view = self._views.setdefault(session_id, _View())
            self._wait(lambda: not view.is_changing, "its files are being opened")
            view.is_changing = True
            try:
                self._wait(lambda: view.users == 0, "files are being transferred")
            except BaseException:
                view.is_changing = False
                self._changed.notify_all()
                raise
        made: list[int] = []
        try:
            # Nobody begins to use it any more, so this needs no lock.
            for follower in list(view.followers):
                follower.let_go()
            _close(view)
            yield made.append
        finally:
            self._install(view, made[0] if made else -1)

    def _install(self, view: _View, descriptor: int, *, users: int = 0) -> None:
        view.descriptor = descriptor
        try:
            if descriptor >= 0:
                for follower, root_of in list(view.followers.items()):
                    try:
                        follower.follow(root_of(os.dup(descriptor)))
                    except OSError:  # no descriptor left: it ends, rather than see nothing
                        follower.stop()
        finally:
            with self._changed:
                view.is_changing = False
                view.users += users
                if view.is_ended and view.users == 0:
                    _close(view)
                self._changed.notify_all()

    def attach(self, session_id: str, follower: Follower, root_of: RootOf) -> None:
        """Have it go over to every later view; by whoever uses the present one."""
        with self._changed:
            view = self._views.get(session_id)
            if view is not None:
                view.followers[follower] = root_of
        if view is None:  # the session has ended meanwhile
            follower.stop()

    def end(self, session_id: str) -> None:
        """The session has ended; what is under way ends by itself."""
        with self._changed:
            view = self._views.pop(session_id, None)
            if view is None:
                return
            view.is_ended = True
            if view.users == 0 and not view.is_changing:
                _close(view)
            followers = list(view.followers)
        for follower in followers:
            follower.let_go()

    def _wait(self, is_so: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + _WAIT_S
        while not is_so():
            if not self._changed.wait(max(until - time.monotonic(), 0.0)) and not is_so():
                raise WorkspaceError(
                    f"the workspace is busy: {why}",
                    hint="Try again when that has ended.",
                    code="CW-WORKSPACE-BUSY",
                )


def _close(view: _View) -> None:
    descriptor, view.descriptor = view.descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)


def _ended() -> BadInput:
    return BadInput("the sandbox was ended", hint="Create a new one.", code="CW-SANDBOX-ENDED")
