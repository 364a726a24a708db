"""The routes of an engine, a file for each kind."""
