"""Canaries: registered texts, such as a system prompt, known by digests and found in what leaves.
Pure."""
