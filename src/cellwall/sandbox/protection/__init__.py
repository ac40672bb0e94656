"""Protected names in a user's directory: found, covered, checked after a run, quarantined."""
