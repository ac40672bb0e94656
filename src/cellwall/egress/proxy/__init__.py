"""The proxy: one session for each cell, one visit for each of its connections."""
