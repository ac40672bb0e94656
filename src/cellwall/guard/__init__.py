"""Looks at what goes in and cleans what comes out; a signal, never the wall."""
