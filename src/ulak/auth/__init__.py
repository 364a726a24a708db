"""Who is asking: principals, API keys, people and tokens, one system for every surface."""
