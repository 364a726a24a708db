"""Durable jobs for Python, each one a state machine that you declare."""

__version__ = "0.1.0"
