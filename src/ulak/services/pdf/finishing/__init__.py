"""Finishing: what is done to a printed document before it is stored, in a process of its own."""
