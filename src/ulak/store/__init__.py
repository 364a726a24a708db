"""Where jobs are kept: one protocol, and the stores that keep it."""
