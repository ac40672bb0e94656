"""Metrics, traces and logs of a running Cellwall: names in one file, one file for each kind.
Values that a user, an agent or code can choose are no labels and no attributes (OBS-1)."""
