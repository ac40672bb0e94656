"""Python source: one bounded parser for every part that reads Python."""
