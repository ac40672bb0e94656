"""Known values: the encodings they can appear in, and the matcher that finds them."""
