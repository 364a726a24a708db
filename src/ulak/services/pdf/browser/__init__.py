"""Browsers: never imported by a process that serves the API."""
