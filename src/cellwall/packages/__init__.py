"""Packages that an agent may install: names, feeds, registry facts, and the verdict on each."""
