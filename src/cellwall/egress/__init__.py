"""The way out: an allowlist of names, a proxy outside the cell that keeps to it, and fetch."""
