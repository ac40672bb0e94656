"""Who may do what: the roles as data, and which of them somebody has."""
