"""Profiles and the one configuration file; every mistake is reported with line and hint."""
