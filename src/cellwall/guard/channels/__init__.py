"""Document formats: plain text, Markdown and HTML (GRD-7). `guard.chat` has the chat services."""
