"""Exports the audit log: JSON Lines, CSV, syslog and OTLP (AUD-4)."""
