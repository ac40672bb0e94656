"""Scans input, redacts and neutralises output. A signal beside the sandbox, never a boundary."""
