"""Credentials: one rule set, one matcher for known values; for output, record and wire (GRD-11)."""
