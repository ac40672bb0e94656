"""A per-user process that keeps templates warm and sandboxes alive between commands."""
