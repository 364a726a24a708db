"""Jobs as they move, as server-sent events."""
