"""Untrusted bytes in, Action; Outcome out, bytes. Nothing is decided here."""
