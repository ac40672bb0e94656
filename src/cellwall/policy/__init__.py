"""Judges what is asked for. Pure; no match is a denial."""
