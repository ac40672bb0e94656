"""Attacks on Cellwall as data: what each tries, what must stop it, and how a verdict is reached."""
