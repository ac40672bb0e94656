"""Shapes of credentials and known values: one set of rules for output, record and wire (GRD-11)."""
