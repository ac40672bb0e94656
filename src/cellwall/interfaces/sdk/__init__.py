"""The Python interface: one async core, one thin blocking face."""
