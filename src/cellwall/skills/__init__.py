"""Signed skills: manifests, the loader that verifies them, and their storage."""
