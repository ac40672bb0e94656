"""Errors of the database. No exception of a driver leaves this part, and no text of one reaches a
message: it can quote values, paths and the address of the server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cellwall.core.errors import StorageError

_BUSY_STATES = frozenset(
    {"57014", "55P03", "40P01"}
)  # query_canceled, lock_not_available, deadlock


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Errors of the driver and the operating system become `StorageError`."""
    try:
        yield
    except PoolTimeout as error:
        raise busy(str(error)) from None
    except DBAPIError as error:
        if _is_busy(error.orig):
            raise busy(str(error)) from None
        if isinstance(error, OperationalError | InterfaceError):
            raise unusable(str(error)) from None
        raise broken(str(error)) from None
    except sqlite3.Error as error:
        if _is_busy(error):
            raise busy(str(error)) from None
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise broken(str(error)) from None
        raise unusable(str(error)) from None
    except OSError as error:
        raise unusable(str(error)) from None
    except SQLAlchemyError as error:
        raise broken(str(error)) from None


def _is_busy(error: BaseException | None) -> bool:
    """A lock or a statement took too long, or two transactions waited for each other."""
    is_locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return is_locked or getattr(error, "sqlstate", "") in _BUSY_STATES


def unusable(detail: str) -> StorageError:
    """It cannot be reached or opened."""
    return StorageError(
        "the database cannot be used",
        hint="Check [storage], the server, and the space and permissions of the state folder.",
        code="CW-STORAGE-UNUSABLE",
        detail=detail,
    )


def busy(detail: str = "") -> StorageError:
    """It did not answer in time."""
    return StorageError(
        "the database did not answer in time",
        hint="Try again; [storage] timeout_s sets the limit.",
        code="CW-STORAGE-BUSY",
        detail=detail,
    )


def broken(detail: str) -> StorageError:
    """Anything else that a driver reports."""
    return StorageError(
        "the database refused the operation",
        hint="Run `cellwall db check`.",
        code="CW-STORAGE-BROKEN",
        detail=detail,
    )


def unsafe() -> StorageError:
    """Another user could read or replace the file."""
    return StorageError(
        "the database file is open to other users, or is not a regular file of yours",
        hint="Run chmod 600 on it, and make sure that you own it and that it has one link.",
        code="CW-STORAGE-UNSAFE",
    )


def old_schema() -> StorageError:
    """The program is newer than the schema."""
    return StorageError(
        "the database has an older schema than this version of Cellwall",
        hint="Run `cellwall db backup`, then `cellwall db migrate`.",
        code="CW-STORAGE-OLD",
    )


def new_schema(what: str = "the database") -> StorageError:
    """The schema is of a newer program, or of another one."""
    return StorageError(
        f"{what} has a schema that this version of Cellwall does not know",
        hint="Use the version of Cellwall that wrote it, or a newer one.",
        code="CW-STORAGE-NEWER",
    )


def no_schema() -> StorageError:
    """There is no schema yet."""
    return StorageError(
        "there is no database yet",
        hint="Run `cellwall db migrate`.",
        code="CW-STORAGE-MISSING",
    )


def no_backup(problem: str, detail: str = "") -> StorageError:
    """A file that is not restored."""
    return StorageError(
        f"the file is not restored: {problem}",
        hint="Name a file that `cellwall db backup` wrote. The database is unchanged.",
        code="CW-STORAGE-BACKUP",
        detail=detail,
    )
