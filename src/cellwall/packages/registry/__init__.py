"""Package registries as a cell sees them: indexes that show only what may be installed."""
