"""The path of an action: numbered steps that judge, run, redact and log it."""
