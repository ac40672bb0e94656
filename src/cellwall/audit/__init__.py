"""The record: hash-linked, durable before the effect."""
