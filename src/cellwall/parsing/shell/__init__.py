"""Shell text: parsed by shfmt, expanded as far as the text says, read as a list of commands."""
