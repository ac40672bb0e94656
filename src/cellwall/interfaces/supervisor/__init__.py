"""A per-user process in which warm templates and long-lived sandboxes are at home."""
