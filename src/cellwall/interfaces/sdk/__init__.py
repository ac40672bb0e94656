"""The Python interface: one async core and a blocking facade derived from it."""
