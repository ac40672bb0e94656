"""Inline code of interpreters (`python -c`): whether it is harmless, and what it starts."""
