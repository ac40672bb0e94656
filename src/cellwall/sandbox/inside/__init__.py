"""Runs inside a cell beside the user's code. Standard library only; never imported outside."""
