"""The name of the service in a state folder, as the database knows the service.

The lock of the state folder admits one process. The name marks the sessions and questions that this
process holds in memory.
"""

from __future__ import annotations

import os

from cellwall.core.ids import check_id, new_id
from cellwall.storage import failures

_NAME = "service-id"
_MAX_BYTES = 64


def service_id_of(home: str) -> str:
    """The name of the service in this state folder, made at the first call."""
    return name_service(home, new_id("svc"))


def name_service(home: str, name: str) -> str:
    """The name of the service in this state folder; this one where the folder has none yet."""
    path = os.path.join(home, _NAME)
    draft = f"{path}.{new_id('new')}"
    try:
        if not os.path.exists(path):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(name)
                file.flush()
                os.fsync(descriptor)
            try:
                os.link(draft, path)  # complete from the first moment, and never replaced
            except FileExistsError:
                pass
            finally:
                os.unlink(draft)
        with open(path, encoding="ascii") as file:
            return check_id(file.read(_MAX_BYTES), what="service id")
    except (OSError, UnicodeDecodeError) as error:
        raise failures.unusable(str(error)) from None
