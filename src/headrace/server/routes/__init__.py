"""One module a group of routes; each handler reads top to bottom."""
