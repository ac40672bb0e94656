"""A database and an approver's key for the tests of this folder."""

from approvers import key, keyed, keyless  # noqa: F401  # fixtures
from databases import migrated_file, sqlite_settings  # noqa: F401  # fixtures
