"""The audit log: hash-linked records, durable before the action takes effect."""
