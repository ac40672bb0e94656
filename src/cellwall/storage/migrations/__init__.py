"""Migrations of the schema, run by Alembic."""
