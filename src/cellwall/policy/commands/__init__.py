"""Models of programs: what the arguments of a command make it run, read and write."""
