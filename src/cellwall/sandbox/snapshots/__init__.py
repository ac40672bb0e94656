"""Snapshots of workspaces as read-only overlay layers, shared by the sessions made from them."""
