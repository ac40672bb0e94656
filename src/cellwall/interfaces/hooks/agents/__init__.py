"""One file for the hook protocol of each agent, and the table of all of them."""
