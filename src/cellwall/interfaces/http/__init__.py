"""The HTTP API: each request becomes an `Action`, and its `Outcome` is rendered as JSON."""
