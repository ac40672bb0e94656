"""Values of secrets on the wire: found, put in, taken out."""
