"""The same service over many hosts: where a session is placed, and how a request gets there."""
