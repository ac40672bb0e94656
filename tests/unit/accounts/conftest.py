"""Both databases for the tests of this folder."""

from databases import (  # noqa: F401  # fixtures
    migrated_file,
    migrated_postgres,
    postgres,
    pytest_generate_tests,
    redis_url,
    settings,
    sqlite_settings,
)
