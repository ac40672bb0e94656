"""Sandboxes for agent frameworks: one file and one extra for each (INT-2). The files use the public
names of `cellwall` alone, so an action of a framework takes the same path as any other."""
