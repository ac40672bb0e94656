"""HTML: tokens, the tables of elements, styles, and what of a page a human reader sees."""
