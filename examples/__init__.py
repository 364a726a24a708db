"""Small programs that use ulak as a stranger would: by its public names."""
