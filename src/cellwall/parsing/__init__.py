"""Formats of others, each understood in one place: pure, and linear in what they are given."""
