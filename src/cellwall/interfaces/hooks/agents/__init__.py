"""The hook protocol of each agent, one file each, and their registry."""
