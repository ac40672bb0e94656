"""Understands shell text: what every command in it is, and what it would run, read and write."""
