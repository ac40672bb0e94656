"""Servers inside sandboxes over HTTP: host names of their own, tokens, and the exchange itself."""
