"""Pages for agents: fetched by the same rules, made readable, untrusted."""
