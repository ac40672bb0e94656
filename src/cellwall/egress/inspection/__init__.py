"""Content inspection: secrets in requests and responses are found, injected and removed."""
