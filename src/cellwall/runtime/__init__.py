"""The one path: numbered steps that judge, run, clean and record an action."""
