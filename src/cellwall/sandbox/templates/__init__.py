"""Templates: which packages they hold, and how their environments are built."""
