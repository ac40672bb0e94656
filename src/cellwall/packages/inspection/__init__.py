"""Artifacts before they are installed: archives read within bounds, and what their files do."""
