"""Roles as data, and the role of each principal."""
