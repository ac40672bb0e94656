"""Pages for people, over the functions of the API. See docs/adr/0030-dashboard.md."""
