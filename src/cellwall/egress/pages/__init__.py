"""Pages for agents: fetched by the same rules, rendered, untrusted."""
