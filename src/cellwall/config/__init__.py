"""Profiles and the one configuration file: read, checked whole, told with line and hint."""
