"""One file per version, in ascending order."""
