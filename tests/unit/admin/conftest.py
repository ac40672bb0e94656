"""A database for the tests of this folder."""

from databases import migrated_file, sqlite_settings  # noqa: F401  # fixtures
