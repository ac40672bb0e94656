"""The walls, the workspaces, the governor and the host check."""
