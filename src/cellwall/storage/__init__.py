"""The service's database, SQLite or PostgreSQL: schema, migrations, repositories, backup."""
